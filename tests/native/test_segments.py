"""Several indexes searched as one, at the library's own calls: what no caller may break."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import velo
from velo import _native, errors
from velo._native.limits import native_limit
from velo.search.answer import QUERY_DTYPES, Answer, native_queries
from velo.testing import synthetic_vectors

DIM = 16
ROWS = synthetic_vectors(1_500, DIM, seed=8)


#: Of no other test: indexes that are opened with it share workers with each other alone.
QUEUE_DEPTH = 37


def opened(path: Path, beside: Any = None, threads: int = 2) -> Any:
    """A ``velo_index *`` that closes itself."""
    ffi, lib = _native.ffi, _native.lib
    place = ffi.gc(ffi.new("velo_index *"), lib.velo_index_close)
    options = _native.new("velo_open_options")
    options.threads, options.cache_share, options.queue_depth = threads, -1, QUEUE_DEPTH
    if beside is not None:
        options.workers_of = beside[0]
    _native.check(lib.velo_index_open(os.fsencode(path), options, place))
    return place


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("parts")
    velo.build(folder / "large", ROWS[:1_000], threads=1).close()
    velo.build(folder / "small", ROWS[1_000:], threads=1).close()
    velo.build(folder / "cosine", ROWS[1_000:], metric="cosine", threads=1).close()
    velo.build(folder / "narrow", np.ascontiguousarray(ROWS[1_000:, :8]), threads=1).close()
    return {path.name: path for path in folder.iterdir()}


@pytest.fixture
def large(folders: dict[str, Path]) -> Iterator[Any]:
    place = opened(folders["large"])
    yield place
    _native.lib.velo_index_close(place)


def search(*segments: tuple[Any, int], count: int | None = None) -> tuple[int, Answer]:
    """Status and answer of the first ten rows as queries."""
    ffi = _native.ffi
    options = _native.new("velo_search_options")
    options.k, options.list_size, options.sigma, options.exact = 5, 50, -1, -1
    queries, _ = native_queries(ROWS[:10], DIM)
    answer = Answer(len(queries), 5)
    given = ffi.new("velo_segment[]", max(1, len(segments)))
    for one, (index, first) in zip(given, segments, strict=False):
        one.index, one.first = index, first
    called = _native.lib.velo_search_segments(
        given,
        len(segments) if count is None else count,
        ffi.NULL,
        _native.pointer("uint8_t", queries),
        QUERY_DTYPES[queries.dtype],
        len(queries),
        0,
        options,
        answer.out,
    )
    return called, answer


def refusal(*segments: tuple[Any, int], count: int | None = None) -> str:
    status, _ = search(*segments, count=count)
    with pytest.raises(errors.InvalidArgumentError) as caught:
        _native.check(status)
    return str(caught.value)


def test_vertices_are_counted_from_where_a_caller_says(large: Any, folders: dict[str, Path]) -> None:
    small = opened(folders["small"], large)
    try:
        status, near = search((large[0], 0), (small[0], 1_000_000))
        assert status == 0
        again = search((small[0], 1_000_000), (large[0], 0))[1]
        assert (near.vertices == again.vertices).all()
        assert ((near.vertices < 1_000) | (near.vertices >= 1_000_000)).all()
        assert (near.distances[:, 0] < 0.1).all()  # each is a row itself
    finally:
        _native.lib.velo_index_close(small)


def test_what_cannot_be_searched_as_one_is_refused(large: Any, folders: dict[str, Path]) -> None:
    low, high = native_limit("segments")
    assert f"{low - 1} parts" in refusal(count=low - 1)
    assert f"{high + 1} parts" in refusal((large[0], 0), count=high + 1)
    assert "index" in refusal((large[0], 0), (0, 0))
    assert "given before" in refusal((large[0], 0), (large[0], 5))
    alone = opened(folders["small"], threads=1)
    assert "workers_of" in refusal((large[0], 0), (alone[0], 1_000))
    for other in ("cosine", "narrow"):
        beside = opened(folders[other], large)
        assert "one metric and as many dimensions" in refusal((large[0], 0), (beside[0], 1_000))
        _native.lib.velo_index_close(beside)
    _native.lib.velo_index_close(alone)


def own_threads() -> set[str]:
    """The threads of this process, without those of the kernel."""
    found = set()
    for one in Path("/proc/self/task").iterdir():
        with contextlib.suppress(OSError):  # it has ended since
            if not (one / "comm").read_text().startswith("iou-"):
                found.add(one.name)
    return found


def wait_until_ended(before: set[str]) -> None:
    """Every thread that was not there `before` has ended; the kernel keeps a joined one for a moment."""
    until = time.monotonic() + 20
    while own_threads() - before and time.monotonic() < until:
        time.sleep(0.01)
    assert not own_threads() - before


@pytest.mark.parametrize("named", [True, False])
def test_workers_end_with_the_last_of_their_indexes(folders: dict[str, Path], named: bool) -> None:
    before = own_threads()  # some may end meanwhile: others' that ran before
    first = opened(folders["large"])
    two = own_threads() - before
    assert len(two) == 2
    second = opened(folders["small"], first if named else None)
    assert own_threads() - before == two
    _native.lib.velo_index_close(first)
    status, near = search((second[0], 7))
    assert status == 0
    assert (near.vertices >= 7).all()
    third = opened(folders["large"], second if named else None)
    assert search((second[0], 0), (third[0], 500))[0] == 0
    assert own_threads() - before == two
    _native.lib.velo_index_close(second)
    _native.lib.velo_index_close(third)
    wait_until_ended(before)


def test_an_index_of_other_options_or_priority_has_its_own_workers(folders: dict[str, Path]) -> None:
    before = own_threads()
    places = [opened(folders["large"]), opened(folders["small"], threads=1)]
    assert len(own_threads() - before) == 3

    of_others = own_threads()
    low = os.getpriority(os.PRIO_PROCESS, 0) + 1
    opener = []

    def open_at_low_priority() -> None:
        opener.append(str(threading.get_native_id()))
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), low)
        places.append(opened(folders["small"]))

    thread = threading.Thread(target=open_at_low_priority)
    thread.start()
    thread.join()
    lowered = own_threads() - of_others - set(opener)
    assert [os.getpriority(os.PRIO_PROCESS, int(one)) for one in lowered] == [low, low]
    for place in places:
        _native.lib.velo_index_close(place)
    wait_until_ended(before)


def test_a_forked_child_has_its_own_workers(large: Any, folders: dict[str, Path]) -> None:
    pid = os.fork()
    if pid == 0:
        with contextlib.suppress(BaseException):
            forked = search((large[0], 0))[0]
            own = opened(folders["small"])
            status, near = search((own[0], 0))
            os._exit(0 if forked != 0 and status == 0 and (near.vertices[:, 0] >= 0).all() else 2)
        os._exit(3)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert search((large[0], 0))[0] == 0
