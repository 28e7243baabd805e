"""Names that users of other libraries guess first: the error says velo's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import velo
from velo import errors

VECTORS = np.eye(8, dtype=np.float32)


@pytest.mark.parametrize(
    ("name", "part"),
    [
        ("read_index", "velo.open"),
        ("IndexFlatL2", "velo.build"),
        ("write_index", "velo.build"),
        ("nonsense", ""),
    ],
)
def test_functions(name: str, part: str) -> None:
    with pytest.raises(AttributeError, match=f"{name}.*{part}"):
        getattr(velo, name)
    assert not hasattr(velo, name)


def test_the_class_says_how_an_index_is_made() -> None:
    for call in (lambda: velo.Index(dim=128), lambda: velo.Index("l2", 128), velo.Index):
        with pytest.raises(TypeError, match=r"velo\.build\(path, vectors\)"):
            call()


@pytest.fixture
def index(tmp_path: Path) -> Any:
    with velo.build(tmp_path / "i", VECTORS, degree=8, threads=1) as made:
        yield made


@pytest.mark.parametrize(
    ("name", "part"),
    [
        ("knn_query", r"index\.search"),
        ("add_items", "writable=True"),
        ("ntotal", r"len\(index\)"),
        ("query", r"index\.search"),
        ("nonsense", ""),
    ],
)
def test_methods(index: Any, name: str, part: str) -> None:
    with pytest.raises(AttributeError, match=f"{name}.*{part}"):
        getattr(index, name)
    assert not hasattr(index, name)


@pytest.mark.parametrize("name", ["top_k", "nonsense"])
def test_a_search_refuses_unknown_options_without_a_wrapper(index: Any, name: str) -> None:
    with pytest.raises(TypeError, match=rf"search\(\) got an unexpected keyword argument '{name}'"):
        index.search(VECTORS[0], **{name: 3})
    assert not hasattr(velo.Index.search, "__wrapped__")
    assert not hasattr(velo.Index.insert, "__wrapped__")


def test_an_error_from_within_is_left_alone() -> None:
    with pytest.raises(TypeError, match="missing 1 required positional"):
        velo.open()  # type: ignore[call-arg]


def test_options_of_a_build(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match=r"build\(\) has no option 'nonsense'; help\(build\) lists them"):
        velo.build(tmp_path / "i", VECTORS, nonsense=16)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match=r"build\(\) has no option 'M'; velo's word is degree"):
        velo.build(tmp_path / "i", VECTORS, M=16)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match=r"open\(\) has no option 'num_threads'; velo's word is threads"):
        velo.open(tmp_path / "i", num_threads=2)  # type: ignore[call-arg]


@pytest.mark.parametrize(
    ("metric", "said"),
    [
        ("euclidean", "l2"),
        ("dot", "ip"),
        ("Inner-Product", "ip"),
        ("angular", "cosine"),
        ("L2", "l2"),
        ("manhattan", None),
    ],
)
def test_metrics(metric: Any, said: str | None, tmp_path: Path) -> None:
    with pytest.raises(errors.InvalidArgumentError) as caught:
        velo.build(tmp_path / "i", VECTORS, metric=metric)
    assert (f"is '{said}' here" in str(caught.value)) == (said is not None)
    assert caught.value.argument == "metric"


def test_vectors_before_the_folder(tmp_path: Path) -> None:
    for call in (velo.build, lambda *both: velo.build_collection(*both, shards=2)):
        with pytest.raises(errors.InvalidArgumentError, match="the folder to make comes first") as caught:
            call(VECTORS, tmp_path / "i.velo")  # type: ignore[arg-type]
        assert caught.value.argument == "path"


def test_a_folder_without_an_index_is_a_clear_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    (tmp_path / "empty").mkdir()
    for name, segment in (("nope", "does not exist"), ("file", "is a file"), ("empty", "no manifest.json")):
        with pytest.raises(errors.NotAnIndexError, match=segment) as caught:
            velo.open(tmp_path / name)
        said = str(caught.value)
        assert "FileNotFound" not in said
        assert "NotDir" not in said
        assert caught.value.argument == "path"


def test_a_filter_of_wrong_ids_says_filter_once(index: Any) -> None:
    with pytest.raises(errors.FilterTypeError) as caught:
        index.search(VECTORS[0], filter=["a", "b"])
    assert str(caught.value).count("filter") == 1
