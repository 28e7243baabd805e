"""Each limit of ``velo.h`` is the core's own: it takes what lies at an end and refuses what lies beyond."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import velo
from velo import _native
from velo._native import limits, loader
from velo.building.build import build_shard
from velo.errors import InvalidArgumentError, NativeLibraryError
from velo.formats.files import as_source
from velo.options import BuildOptions, OpenTuning, sizes_of

ROOT = Path(__file__).resolve().parents[2]
ROWS = np.random.default_rng(0).standard_normal((300, 8)).astype(np.float32)


def test_the_core_and_the_header_name_the_same_limits() -> None:
    source = (ROOT / "zig/src/base/limits.zig").read_text()
    constants = dict(re.findall(r"pub const (\w+) = (\d+);", source))
    ranges = re.findall(r"pub const (\w+): Range = \.\{ \.min = (\w+), \.max = (\w+) \};", source)
    assert len(ranges) == source.count(": Range = ")
    in_core = {name: tuple(int(constants.get(end, end)) for end in ends) for name, *ends in ranges}
    assert len(in_core) == 20
    assert {name: tuple(limit) for name, limit in limits._limits().items()} == in_core


def test_the_core_and_the_header_name_the_same_constants() -> None:
    source = (ROOT / "zig/src/search/shared.zig").read_text()
    constants = limits._numbers("velo_constant")
    assert constants
    for name, number in constants.items():
        assert f"pub const {name} = {number};" in source


def test_a_limit_that_the_header_does_not_name(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with pytest.raises(NativeLibraryError, match="no limit of courage"):
        limits.native_limit("courage")
    (tmp_path / "velo.h").write_text("typedef enum velo_status { VELO_OK = 0 } velo_status;")
    monkeypatch.setattr(loader, "CHECKOUT", tmp_path / "none")
    monkeypatch.setattr(loader, "PACKAGED", tmp_path)
    limits._limits.cache_clear()
    limits._numbers.cache_clear()
    try:
        with pytest.raises(NativeLibraryError, match="no limit of degree"):
            limits.native_limit("degree")
    finally:
        limits._limits.cache_clear()
        limits._numbers.cache_clear()


def status_of_build(folder: Path, **fields: Any) -> tuple[int, str]:
    """What opening a build says, past Python's own checks; and the argument that it names."""
    options = _native.new("velo_build_options")
    options.dim, options.row_count, options.record_bits, options.threads = 8, 300, 4, 1
    options.links_kept = 4
    for name, value in fields.items():
        setattr(options, name, value)
    out = _native.ffi.new("velo_build **")
    status = _native.lib.velo_build_open(os.fsencode(folder), options, out)
    if status == 0:
        _native.lib.velo_build_close(out)
        return 0, ""
    return status, last_argument()


def last_argument() -> str:
    last = _native.new("velo_error")
    _native.lib.velo_last_error(last)
    return _native.text(last.argument)


@pytest.mark.parametrize(
    "name",
    [
        "dim",
        "memory_bits",
        "record_bits",
        "degree",
        "build_list_size",
        "alpha",
        "affinity_percent",
        "checkpoint_ms",
        "threads",
    ],
)
def test_a_build_takes_both_ends_and_nothing_beyond(tmp_path: Path, name: str) -> None:
    low, high = limits.native_limit(name)
    for value in (low, high):
        assert status_of_build(tmp_path / "i", **{name: value}) == (0, ""), value
    step = 0.01 if name == "alpha" else 1
    # A zero is the default, so that nothing lies below 1.
    for value in [high + step, *([low - step] if low > 1 or name == "alpha" else [])]:
        assert status_of_build(tmp_path / "i", **{name: value}) == (1, name), value
    assert not (tmp_path / "i").exists()


@pytest.mark.parametrize("name", ["dim", "memory_bits", "record_bits", "degree", "links_kept"])
def test_a_size_plan_accepts_both_limits_and_nothing_above(name: str) -> None:
    low, high = limits.native_limit(name)
    for value in (low, high):
        sizes_of(300, **{"dim": 8, name: value})
    with pytest.raises(InvalidArgumentError) as caught:
        sizes_of(300, **{"dim": 8, name: high + 1})
    assert caught.value.argument == name


def test_a_size_plan_rejects_more_rows_than_its_shards_hold() -> None:
    assert sizes_of(2**31 + 10, 8, shards=2).disk_ids_bytes == 8 * (2**31 + 10)
    with pytest.raises(InvalidArgumentError) as caught:
        sizes_of(2**31, 8)
    assert caught.value.argument == "row_count"


def test_a_build_keeps_at_most_as_many_links_as_its_degree(tmp_path: Path) -> None:
    assert status_of_build(tmp_path / "i", degree=20, links_kept=20) == (0, "")
    assert status_of_build(tmp_path / "i", degree=20, links_kept=21) == (1, "links_kept")
    assert status_of_build(tmp_path / "i", degree=20, links_kept=2**32 - 1) == (0, "")


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Iterator[velo.Index]:
    path = tmp_path_factory.mktemp("limits") / "i"
    with velo.build(path, ROWS, degree=16, threads=1, calibrate=False) as made:
        yield made


@pytest.mark.parametrize("name", ["k", "list_size", "beam_width", "burst_max", "sigma"])
def test_a_search_takes_both_ends_and_nothing_beyond(index: velo.Index, name: str) -> None:
    def status(value: float) -> tuple[int, str]:
        options, out = _native.new("velo_search_options"), _native.new("velo_expectation")
        options.k = 10
        setattr(options, name, value)
        code = _native.lib.velo_expect(index._seen().segments[0].opened.handle, options, out)
        return code, last_argument() if code else ""

    low, high = limits.native_limit(name)
    assert [status(low), status(high)] == [(0, ""), (0, "")]
    assert status(high + 1) == (1, name)
    if name == "k":
        assert status(0) == (1, "k")
    if name == "sigma":
        assert status(math.nan) == (1, "sigma")


@pytest.mark.parametrize("name", ["queries_in_flight", "queue_depth", "cache_share", "threads"])
def test_an_open_takes_both_ends_and_nothing_beyond(index: velo.Index, name: str) -> None:
    def status(value: float) -> tuple[int, str]:
        options, out = _native.new("velo_open_options"), _native.ffi.new("velo_index *")
        options.threads, options.io, options.memory_bytes = 1, 2, 1 << 20
        setattr(options, name, value)
        code = _native.lib.velo_index_open(os.fsencode(index.path), options, out)
        if code == 0:
            _native.lib.velo_index_close(out)
            return 0, ""
        return code, last_argument()

    if name == "cache_share":
        low, high, beyond = 0.0, limits.native_limit("cache_share_percent").high / 100, 0.951
    else:
        (low, high), beyond = limits.native_limit(name), limits.native_limit(name).high + 1
    assert status(low) == (0, "")
    if name != "threads":  # a thousand workers of an index take gigabytes: a build stands for them, below
        assert status(high) == (0, "")
    assert status(beyond) == (1, name)


def test_a_build_runs_on_as_many_threads_as_the_limit_says(tmp_path: Path) -> None:
    most = limits.native_limit("threads").high
    options = BuildOptions(degree=8, build_list_size=16, threads=most, calibrate=False)
    build_shard(tmp_path / "i", as_source(ROWS), options)
    assert velo.verify(tmp_path / "i") > 0


@pytest.mark.parametrize("links", [1, 7, 17, 128])
def test_an_open_index_keeps_what_navigation_needs_and_at_most_what_was_built(
    index: velo.Index, links: int
) -> None:
    with pytest.raises(InvalidArgumentError, match="within 8 and 16") as caught:
        velo.open(index.path, threads=1, tuning=OpenTuning(links_kept=links))
    assert caught.value.argument == "links_kept"


@pytest.mark.parametrize(("links", "kept"), [(8, 8), (9, 8), (15, 14), (16, 16)])
def test_links_go_down_to_the_next_step(index: velo.Index, links: int, kept: int) -> None:
    with velo.open(index.path, threads=1, tuning=OpenTuning(links_kept=links)) as again:
        assert again.info()["links_kept"] == kept


def test_of_few_links_all_or_none_are_kept(tmp_path: Path) -> None:
    velo.build(tmp_path / "i", ROWS, degree=6, threads=1, calibrate=False).close()
    with velo.open(tmp_path / "i", threads=1, tuning=OpenTuning(links_kept=6)) as index:
        assert index.info()["links_kept"] == 6
    with pytest.raises(InvalidArgumentError, match="within 6 and 6"):
        velo.open(tmp_path / "i", threads=1, tuning=OpenTuning(links_kept=5))
    assert velo.plans(tmp_path / "i")  # it opens with few links to ask what budgets would buy
