"""Arguments that Python, numpy or Arrow would refuse in their own words: each is an error of velo's."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import velo
from velo.errors import InvalidArgumentError, VeloError

HALF = "\ud800"  # half a surrogate pair: no UTF-8
ROWS = np.random.default_rng(0).standard_normal((300, 8)).astype(np.float32)


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Iterator[velo.Index]:
    path = tmp_path_factory.mktemp("bad") / "i"
    metadata = {"s": ["x"] * 300, "t": [["a"]] * 300, "n": list(range(300))}
    ids = [f"a{number}" for number in range(300)]
    with velo.build(
        path, ROWS, ids=ids, metadata=metadata, degree=8, store_vectors=True, calibrate=False
    ) as made:
        yield made


@pytest.mark.parametrize(
    "call",
    [
        lambda index: index.search(ROWS[0], filter=velo.col("s") == HALF),
        lambda index: index.search(ROWS[0], filter=velo.col(HALF) == 1),
        lambda index: index.search(ROWS[0], filter=velo.col("t").contains_any([HALF])),
        lambda index: index.search(ROWS[0], filter=f"s = '{HALF}'"),
        lambda index: index.search(ROWS[0], filter={"s": HALF}),
        lambda index: index.search(ROWS[0], filter={HALF: 1}),
        lambda index: index.search(ROWS[0], filter=[HALF]),
        lambda index: index.search(ROWS[0], filter=[2**70]),
        lambda index: index.search(ROWS[0], filter=5),
        lambda index: index.search(ROWS[0], return_metadata=5),
        lambda index: index.search(ROWS[0], return_metadata=[5]),
        lambda index: index.search(ROWS[0], return_metadata={"a": 1}),
        lambda index: index.search(ROWS[0], return_metadata=HALF),
        lambda index: index.search(ROWS[0], group_by=HALF),
        lambda index: index.search(ROWS[0], k=2**70),
        lambda index: index.search(ROWS[0], list_size=2**70),
        lambda index: index.search(ROWS[0], timeout_s=float("nan")),
        lambda index: index.range_search(ROWS[0], 10**400),
        lambda index: index.get_vectors(None),
        lambda index: index.get_vectors([HALF]),
        lambda index: index.get_vectors([2**70]),
        lambda index: index.set_metadata({"a": [HALF] * 300}),
        lambda index: index.set_metadata({"a": [2**70] * 300}),
        lambda index: velo.open(index.path, memory=2**70),
        lambda index: velo.open(index.path, memory="9" * 90 + "%"),
        lambda index: velo.open(index.path, memory="9" * 5_000),
        lambda index: velo.open(index.path, threads=2**70),
        lambda index: velo.open("/tmp/" + HALF),
        lambda index: velo.open("/tmp/a\0b"),
        lambda index: velo.open(5),
        lambda index: velo.verify("/tmp/a\0b"),
        lambda index: velo.build("/tmp/a\0b", ROWS),
        lambda index: velo.build_collection("/tmp/a\0b", ROWS, shards=2),
        lambda index: velo.build(index.path.parent / "k", ROWS, ids=[HALF] * 300),
        lambda index: velo.build(index.path.parent / "k", ROWS, ids=[2**70] * 300),
        lambda index: velo.build(index.path.parent / "k", ROWS, ids=5),
        lambda index: velo.build(index.path.parent / "k", ROWS, metadata={"a": [2**70] * 300}),
        lambda index: velo.build(index.path.parent / "k", ROWS, metadata={HALF: [1] * 300}),
        lambda index: velo.build(index.path.parent / "k", ROWS, build_memory=2**70),
        lambda index: velo.build(index.path.parent / "k", ROWS, seed=2**70),
    ],
)
def test_a_typed_error(index: velo.Index, call: Callable[[velo.Index], Any]) -> None:
    with pytest.raises(VeloError) as caught:
        call(index)
    assert isinstance(caught.value, ValueError | TypeError | KeyError), caught.value
    assert not (index.path.parent / "k").exists()


def test_a_degree_below_the_usual_links_is_enough(tmp_path: Path) -> None:
    """The links kept in memory follow the degree by default."""
    for degree, kept in ((24, 24), (40, 32)):
        with velo.build(tmp_path / str(degree), ROWS, degree=degree, calibrate=False) as made:
            assert (made.info()["degree"], made.info()["links_built"]) == (degree, kept)
    with pytest.raises(InvalidArgumentError) as caught:
        velo.build(tmp_path / "i", ROWS, degree=24, links_kept=25)
    assert caught.value.argument == "links_kept"


@pytest.mark.parametrize("below", ["", "shop.velo", "a/b/shop.velo"])
def test_a_file_in_the_way_is_named(tmp_path: Path, below: str) -> None:
    file = tmp_path / "vectors.npy"
    file.write_bytes(b"\x93NUMPY")
    with pytest.raises(velo.errors.NotAnIndexError, match=r"vectors\.npy is a file") as caught:
        velo.open(file / below)
    assert caught.value.argument == "path"
