"""Opening and closing: threads, forks, dropped indexes, many in a row."""

from __future__ import annotations

import gc
import multiprocessing
import os
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import velo
from tests import child
from velo import errors


def test_a_closed_index_says_so(sample: Any, sample_path: Path) -> None:
    with velo.open(sample_path) as index:
        assert not index.closed
    assert index.closed
    index.close()
    for call in (
        lambda: index.search(sample.queries[0]),
        lambda: index.get_vectors([1]),
        lambda: index.info(),
        lambda: index.verify(),
        lambda: index.explain(sample.queries[0]),
    ):
        with pytest.raises(errors.ClosedError):
            call()
    assert "closed" in repr(index)
    assert len(index) == 20_000


def test_threads_search_while_another_closes(sample: Any, sample_path: Path) -> None:
    for _ in range(5):
        index = velo.open(sample_path, threads=2)
        done: list[str] = []

        def work(index: velo.Index = index, done: list[str] = done) -> None:
            try:
                while True:
                    assert index.search(sample.queries[:8], 5).ids.shape == (8, 5)
            except errors.ClosedError:
                done.append("closed")

        threads = [threading.Thread(target=work) for _ in range(6)]
        for thread in threads:
            thread.start()
        time.sleep(0.03)
        index.close()
        for thread in threads:
            thread.join(60)
        assert done == ["closed"] * 6


def test_threads_get_their_own_answers(sample: Any, sample_index: velo.Index) -> None:
    expected = sample_index.search(sample.queries, 5)
    wrong: list[int] = []

    def work(offset: int) -> None:
        for step in range(100):
            number = (offset + step) % 200
            found = sample_index.search(sample.queries[number], 5, filter=None)
            if found.ids[0] != expected.ids[number, 0]:
                wrong.append(number)

    threads = [threading.Thread(target=work, args=(at * 25,)) for at in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(wrong) <= 8


@pytest.mark.parametrize("callers", [2, 16])
def test_callers_of_one_query_each_are_all_answered(sample: Any, sample_path: Path, callers: int) -> None:
    """Workers look for queries before they sleep, and keep ends of calls to themselves while queries wait."""
    tuning = velo.OpenTuning(queries_in_flight=1, buffered=True)
    answered = [0] * callers
    with velo.open(sample_path, threads=2, tuning=tuning) as index:

        def work(me: int) -> None:
            for step in range(200):
                answered[me] += len(index.search(sample.queries[(me + step) % 200], 1, list_size=1).ids)

        threads = [threading.Thread(target=work, args=(me,), daemon=True) for me in range(callers)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
            assert not thread.is_alive(), "a caller waits for ever"
    assert answered == [200] * callers


def test_an_interrupted_search_leaves_the_index_usable(sample_path: Path) -> None:
    program = """
        import os, signal, sys, threading, time
        import numpy as np
        import velo

        index = velo.open(sys.argv[1], threads=1)
        queries = np.random.default_rng(1).random((20, index.dim), np.float32)

        def interrupt():
            for _ in range(20):
                time.sleep(0.01)
                os.kill(os.getpid(), signal.SIGINT)
            global ended
            ended = True

        ended, interrupted = False, 0
        sender = threading.Thread(target=interrupt)
        sender.start()
        while not ended:
            try:
                while not ended:
                    index.search(queries[0])
                    index.search(queries)
            except KeyboardInterrupt:
                interrupted += 1
        sender.join()
        assert index.search(queries[0]).ids.shape == (10,)
        index.close()
        print("interrupted", interrupted > 0)
        """
    done = child.run(program, sample_path)
    assert done.stdout == "interrupted True\n", done.stderr


def test_a_forked_child_is_told_and_does_not_hang(sample: Any, sample_index: velo.Index) -> None:
    sample_index.search(sample.queries[0])
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            for call in (
                lambda: sample_index.search(sample.queries[0]),
                lambda: sample_index.info(),
                lambda: sample_index.get_vectors([1]),
                lambda: sample_index.verify(),
            ):
                try:
                    call()
                except errors.ForkedError as error:
                    assert str(os.getpid()) in str(error)  # noqa: PT017
                else:
                    os._exit(2)
            sample_index.close()
            with velo.open(sample_index.path, threads=1) as own:
                code = 0 if own.search(sample.queries[0]).ids.shape == (10,) else 3
        finally:
            os._exit(code)
    deadline = time.monotonic() + 60
    while True:
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            break
        if time.monotonic() > deadline:
            os.kill(pid, 9)
            os.waitpid(pid, 0)
            raise AssertionError("the child hangs")
        time.sleep(0.01)
    assert os.waitstatus_to_exitcode(status) == 0
    assert sample_index.search(sample.queries[0]).ids.shape == (10,), "the parent's index still works"


def test_a_forked_child_that_drops_the_index_ends_cleanly(sample_path: Path) -> None:
    program = """
        import gc, os, sys
        import numpy as np
        import velo
        index = velo.open(sys.argv[1])
        query = np.zeros(128, np.uint8)
        index.search(query)
        child = os.fork()
        if child == 0:
            del index
            gc.collect()
            sys.exit(0)  # runs what is registered for the end of a process
        assert os.waitpid(child, 0)[1] == 0
        index.search(query)
        print("both ended")
        """
    done = child.run(program, sample_path)
    assert (done.returncode, done.stdout) == (0, "both ended\n"), done.stderr


def _ids_in_child(index: velo.Index, query: np.ndarray) -> list[int]:
    with index:
        return list(index.search(query, 5).ids.tolist())


def test_an_index_sent_to_a_spawned_process(sample: Any, sample_index: velo.Index) -> None:
    context = multiprocessing.get_context("spawn")
    with context.Pool(1) as pool:
        found = pool.apply(_in_child, (str(sample_index.path), sample.queries[0]))
    assert found == sample_index.search(sample.queries[0], 5).ids.tolist()


def _in_child(path: str, query: np.ndarray) -> list[int]:
    return _ids_in_child(velo.open(path, memory="20%"), query)


def test_dropped_indexes_are_closed(sample: Any, sample_path: Path) -> None:
    def handles() -> int:
        return len(os.listdir("/proc/self/fd"))

    def workers() -> int:
        return len(os.listdir("/proc/self/task"))

    velo.open(sample_path, threads=2).close()
    gc.collect()
    before = handles(), workers()
    for _ in range(5):
        index = velo.open(sample_path, threads=2)
        index.search(sample.queries[:2], filter=velo.col("uniform10") == 1)
        del index
        gc.collect()
    # A thread that was joined stands in its list until the kernel has taken it out.
    until = time.monotonic() + 20
    while (handles() > before[0] + 1 or workers() > before[1] + 1) and time.monotonic() < until:
        time.sleep(0.01)
    assert handles() <= before[0] + 1
    assert workers() <= before[1] + 1


def test_an_open_index_that_nobody_asks_holds_its_arrays_and_little_else(
    sample_path: Path, run_python: Any
) -> None:
    """What searches may need at most is address space; were it filled, opening would take 60 MiB more."""
    program = """
        import sys
        from pathlib import Path
        import velo
        def resident():
            return int(Path("/proc/self/statm").read_text().split()[1]) * 4096
        velo.open(sys.argv[1], threads=1).close()
        before = resident()
        with velo.open(sys.argv[1], threads=2) as index:
            print(resident() - before)
        """
    done = run_python(program, sample_path)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < 16 << 20


def test_memory_stays_below_the_budget(sample_path: Path, run_python: Any) -> None:
    """Resident growth of an open index at work: its budget and 64 MiB at most."""
    program = """
        import sys
        from pathlib import Path
        import numpy as np
        import velo
        def resident():
            return int(Path("/proc/self/statm").read_text().split()[1]) * 4096
        queries = np.random.default_rng(0).integers(0, 120, size=(2_000, 128)).astype(np.uint8)
        import velo._native
        velo._native.version()
        before = resident()
        with velo.open(sys.argv[1], memory="20%", threads=2) as index:
            for _ in range(3):
                index.search(queries, 10, filter={"price": {"$lt": 0.5}})
            print(resident() - before - index.info()["memory_budget_bytes"])
        """
    done = run_python(program, sample_path)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < 64 << 20
