"""A process is killed between any two things that it does to files; words and vectors agree afterwards.

``tests/live/kills.py`` kills at random moments of a mixed load. Here a call is killed at a step that is
counted: before a file of words, or one of those beside it, is opened, named, moved or taken away.
"""

from __future__ import annotations

import json
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pytest

import velo
from tests import child
from tests.long import count

DIM, ROWS = 6, 60
#: The rows that a process writes, in the place of others and beside them.
WRITTEN = range(50, 70)

#: Does one thing, and ends itself before a step of it. Without one it tells how many there are, and which of
#: them are about a file of words, or come next.
CHILD = """
import json, os, signal, sys
from tests.fulltext.test_kills import do

what, path, die_at = sys.argv[1], sys.argv[2], int(sys.argv[3])
events = ("open", "os.rename", "os.remove", "os.rmdir", "os.mkdir", "sqlite3.connect")
of_words, is_watched, step_count = set(), False, 0

def step(event, arguments):
    global step_count
    if not is_watched or event not in events:
        return
    if event == "open" and not (isinstance(arguments[2], int) and arguments[2] & (os.O_WRONLY | os.O_RDWR)):
        return
    step_count += 1
    if step_count == die_at:
        os.kill(os.getpid(), signal.SIGKILL)
    if ".words" in str(arguments[0]):
        of_words.update((step_count, step_count + 1))

def watch():
    global is_watched
    is_watched = True

sys.addaudithook(step)
do(what, path, watch)
is_watched = False
print(json.dumps([step_count, sorted(one for one in of_words if one <= step_count)]))
"""

#: By the id of a row the number that its vector follows from, and that of its word.
State: TypeAlias = dict[int, tuple[int, int]]

BUILT: State = {one: (one, one) for one in range(ROWS)}
ONCE = BUILT | {one: (1_000 + one, 1_000 + one) for one in WRITTEN}
TWICE = BUILT | {one: (2_000 + one, 2_000 + one) for one in WRITTEN}
RENAMED: State = {one: (one, 1_000 + one) for one in range(ROWS)}

#: What may be there afterwards, of each call. All that was acknowledged is.
ALLOWED: dict[str, list[State]] = {
    "build": [BUILT],
    "set_metadata": [BUILT, RENAMED],
    "first write": [BUILT, ONCE],
    "large call": [ONCE, TWICE],
    "flush": [ONCE],
    "optimize": [ONCE],
}


def vectors_of(values: Any) -> np.ndarray:
    """The vectors of some numbers."""
    return np.array([np.random.default_rng(one).normal(size=DIM) for one in values], np.float32)


def table_of(values: Any) -> pa.Table:
    """The texts of some numbers: a word that all rows have, and one of their own."""
    return pa.table({"text": [f"row w{value}" for value in values]})


def do(what: str, path: str | Path, watch: Callable[[], None]) -> None:
    """One of the calls; what is acknowledged before it is not watched."""
    if what == "build":
        watch()
        made: dict[str, Any] = {"store_vectors": True, "threads": 1, "calibrate": False}
        ids = np.arange(ROWS)
        velo.build(path, vectors_of(ids), ids=ids, metadata=table_of(ids), text="text", **made).close()
        return
    if what == "set_metadata":
        with velo.open(path, threads=1) as index:
            watch()
            index.set_metadata(table_of(range(1_000, 1_000 + ROWS)))
        return
    if what == "first write":
        watch()
    with velo.open(path, writable=True, durability="process", threads=1) as index:
        values = [1_000 + one for one in WRITTEN]
        index.upsert(vectors_of(values), list(WRITTEN), table_of(values))
        watch()
        if what == "first write":
            index.close()  # the next writer moves the words to the segment that the build became
            velo.open(path, writable=True, threads=1).close()
        elif what == "large call":
            index._folders[0].live.delta_bytes_max = 0  # type: ignore[union-attr] # its rows become a segment at once
            values = [2_000 + one for one in WRITTEN]
            index.upsert(vectors_of(values), list(WRITTEN), table_of(values))
        else:
            getattr(index, what)()


def check(path: Path, allowed: list[State]) -> None:
    """One of these states is found, by columns, vectors and words alike."""
    with velo.open(path, threads=1) as index:
        rows = index.rows(limit=10 * ROWS)
        ids = rows["id"].to_pylist()
        words = [int(text.split("w")[-1]) for text in rows["text"].to_pylist()]
        told = dict(zip(ids, words, strict=True))
        state = next((one for one in allowed if {row: word for row, (_, word) in one.items()} == told), None)
        assert state is not None, f"{len(told)} rows are none of what may be there"
        vectors = index.get_vectors(ids)
        np.testing.assert_array_equal(vectors, vectors_of(state[one][0] for one in ids))
        by_words = velo.RRF(vectors=0.0, depth=4096)
        all_rows = index.search(vectors[0], 4096, text="row", fusion=by_words)
        found = all_rows.ids[: int(all_rows.counts[0])].tolist()
        assert sorted(found) == sorted(ids), "words know other rows"
        values = sorted({word for one in allowed for _, word in one.values()})
        texts = [f"w{value}" for value in values]
        each = index.search(np.zeros((len(values), DIM)), 2, text=texts, fusion=by_words)
        for value, hits, size in zip(values, each.ids, each.counts, strict=True):
            wanted = [one for one, word in told.items() if word == value]
            assert hits[:size].tolist() == wanted, f"w{value} finds other rows"
        both = index.search(vectors, 1, text=[f"w{word}" for word in words], exact=True, recall=1.0)
        assert both.ids[:, 0].tolist() == ids
        assert (both.distances == 0).all(), "a row was found with the vector of another"


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("kills") / "built.velo"
    do("build", path, lambda: None)
    return path


@pytest.mark.parametrize(
    "what",
    [
        pytest.param(
            what,
            marks=[]
            if what in ("set_metadata", "first write", "optimize")
            else [
                pytest.mark.long(
                    guarded_by="tests/fulltext/test_kills.py::test_words_and_rows_agree_after_a_kill"
                )
            ],
        )
        for what in ALLOWED
    ],
)
def test_words_and_rows_agree_after_a_kill(
    built: Path, tmp_path: Path, random: np.random.Generator, what: str
) -> None:
    def begin(name: str) -> Path:
        path = tmp_path / name
        if what != "build":
            shutil.copytree(built, path)
        return path

    whole = child.run(CHILD, what, begin("whole.velo"), 0)
    assert whole.returncode == 0, whole.stderr
    step_count, of_words = json.loads(whole.stdout)
    check(tmp_path / "whole.velo", ALLOWED[what][-1:])
    assert of_words, "nothing was done to words"
    for turn in range(count(1, 12, "VELO_TEST_KILLS")):
        among = of_words if turn % 2 == 0 else range(1, step_count + 1)
        # The first kill comes once a file of words was begun.
        die_at = of_words[:2][-1] if turn == 0 else int(random.choice(among))
        path = begin(f"{turn}.velo")
        done = child.run(CHILD, what, path, die_at)
        assert done.returncode == -signal.SIGKILL, f"step {die_at} of {step_count}: {done.stderr}"
        # A build is there once its manifest is; one that is not goes on.
        is_there = what != "build" or (path / "manifest.json").exists()
        if is_there:
            check(path, ALLOWED[what])
        # Whoever comes next takes away what was left.
        if what != "build" or not is_there:
            do(what, path, lambda: None)
        check(path, ALLOWED[what][-1:])
        assert velo.verify(path) > 0
        assert not list(path.rglob("*.words.*.part")), "what the killed process began is left"
