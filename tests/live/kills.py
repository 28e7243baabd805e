"""Processes that write are killed at random moments of a mixed load; a ledger here says what must be there.

``python -m tests.live.kills --count 500`` kills 500 of them, each after up to a quarter of a second of work.
``--minutes 10 --writers 6`` has several of them write to one folder at once, stops or kills one of them every
few seconds, and starts another in its place.
"""

from __future__ import annotations

import argparse
import json
import signal
import tempfile
import time
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa

import velo
from tests import child

DIM = 6
IDS = 400
#: Of each of several writers, and of those that all of them write.
FEW_IDS = 60
#: The first id that all writers write, and the first of those that tell how far each writer is.
SHARED = 100_000
TICKS = 200_000
#: Values are a writer's own: those of a writer leave its number as the remainder.
WRITERS_MAX = 16

#: Writes in a seeded order; each line on its output says what it is about to do, or that it was done. One of
#: several writers also writes ids that all of them write, counts in the row of an id of its own, and looks
#: whether it sees how far the others have counted.
CHILD = """
import json, os, sys
import numpy as np
import velo
from velo.compaction import segment_builder
from tests.live.kills import DIM, FEW_IDS, SHARED, TICKS, WRITERS_MAX

path, durability = sys.argv[1], sys.argv[2]
seed, first, ids, number, writers = (int(one) for one in sys.argv[3:])
if seed % 2:
    segment_builder._RESUMED_ROWS = 1  # every merge goes on after a kill, as only large ones do else
random = np.random.default_rng(seed)
counted = os.open(path + ".counted", os.O_RDWR | os.O_CREAT)
sure = velo.SearchTuning(sigma=10)

def say(**what):
    print(json.dumps(what), flush=True)

def rows_of(values):
    texts = [f"new w{value}" for value in values]
    vectors = np.repeat(np.array(values, np.float32)[:, None], DIM, axis=1)
    return vectors, {"value": values, "extra": [0] * len(values), "text": texts}

def count_on():
    mine = int.from_bytes(os.pread(counted, 8, 8 * number), "little") + 1
    vectors, columns = rows_of([mine])
    index.upsert(vectors, [TICKS + number], columns)
    os.pwrite(counted, mine.to_bytes(8, "little"), 8 * number)
    for other in range(writers):
        least = int.from_bytes(os.pread(counted, 8, 8 * other), "little")
        seen = index.get([TICKS + other], columns=["value"])["value"].to_pylist() if least else [0]
        assert seen and seen[0] >= least, f"writer {other} has counted to {least}, and {seen} is seen"

# Several writers flush and merge for one another.
often = [.3, .3, .05, .05, .24, .04, .02] if writers == 1 else [.3, .3, .06, .06, .26, .015, .005]
with velo.open(path, writable=True, durability=durability, threads=1) as index:
    own = index.get(np.arange(first, first + ids), columns=["value", "extra"], unknown="skip")
    say(open=list(zip(*(own[name].to_pylist() for name in ("id", "value", "extra")))))
    while True:
        kinds = ["insert", "upsert", "update", "update by filter", "delete", "flush", "optimize"]
        kind = random.choice(kinds, p=often)
        shared = writers > 1 and random.random() < 0.2
        chosen = random.choice(FEW_IDS if shared else ids, int(random.integers(1, 12)), replace=False)
        chosen = (chosen + (SHARED if shared else first)).tolist()
        values = (random.integers(1, 60_000, len(chosen)) * WRITERS_MAX + number).tolist()
        say(kind=str(kind), ids=chosen, values=values)
        # Now and then a call is larger than the memory for new rows.
        is_large = kind in ("insert", "upsert") and random.random() < (0.05 if writers > 1 else 0.2)
        index._folders[0].live.delta_bytes_max = 0 if is_large else 64 << 20
        vectors, rows = rows_of(values)
        try:
            if kind == "insert":
                index.insert(vectors, chosen, rows)
            elif kind == "upsert":
                index.upsert(vectors, chosen, rows)
            elif kind == "update":
                index.update(chosen, {"extra": values, "text": [f"then x{value}" for value in values]})
            elif kind == "update by filter":
                index.update(filter=chosen, metadata={"extra": values[0], "text": f"then x{values[0]}"})
            elif kind == "delete":
                index.delete(chosen)
            else:
                getattr(index, str(kind))()
        except velo.errors.DuplicateIdError:
            say(refused=True)
            continue
        say(done=True)
        if kind in ("insert", "upsert") and not shared:
            near = index.search(vectors, 1, list_size=200, exact=True, tuning=sure)
            assert (near.distances[:, 0] == 0).all(), "a row is not found by its own vector"
        if writers > 1:
            count_on()
"""


#: The value of each id, which its vector has too, and what updates set.
State: TypeAlias = dict[int, tuple[int, int]]


def applied(state: State, call: dict[str, Any]) -> State:
    """What a call makes of a state."""
    after = dict(state)
    for one, value in zip(call["ids"], call["values"], strict=True):
        if one >= SHARED:  # others write it, too
            continue
        if call["kind"] == "delete":
            after.pop(one, None)
        elif call["kind"] in ("insert", "upsert"):
            after[one] = (value, 0)
        elif call["kind"] == "update" and one in after:
            after[one] = (after[one][0], value)
        elif call["kind"] == "update by filter" and one in after:
            after[one] = (after[one][0], call["values"][0])
    return after


def found_in(index: velo.Index) -> State:
    """The values of every id, from metadata and from vectors, which must agree."""
    rows = index.rows(limit=10_000)
    ids, values = rows["id"].to_pylist(), rows["value"].to_pylist()
    assert len(ids) == len(set(ids)) == len(index), "an id has two rows"
    if ids:
        assert (index.get_vectors(ids)[:, 0] == np.array(values, np.float32)).all()
        some = ids[:5]
        # A bound this wide leaves nothing out: codes cannot tell rows on one line apart.
        sure = velo.SearchTuning(sigma=10)
        near = index.search(index.get_vectors(some), 1, list_size=500, exact=True, tuning=sure)
        assert (near.distances[:, 0] == 0).all(), "a row is not found by its own vector"
    check_words(index, rows)
    return dict(zip(ids, zip(values, rows["extra"].to_pylist(), strict=True), strict=True))


def check_words(index: velo.Index, rows: pa.Table) -> None:
    """Words find the rows that vectors and columns tell of, and no others."""
    expected = {
        one: f"x{extra}" if extra else f"w{value}"
        for one, value, extra in zip(
            *(rows[name].to_pylist() for name in ("id", "value", "extra")), strict=True
        )
    }
    by_words = velo.RRF(vectors=0.0, depth=4096)
    query = np.zeros(DIM, np.float32)
    words = sorted(set(expected.values()))
    for start in range(0, len(words), 100):
        some = words[start : start + 100]
        found = index.search(query, 4096, text=" ".join(some), fusion=by_words)
        ids = found.ids[: int(found.counts[0])].tolist()
        assert sorted(ids) == sorted(one for one, word in expected.items() if word in some), "words differ"
    kept = index.search(query, 4096, text="new then", fusion=by_words)
    assert sorted(kept.ids[: int(kept.counts[0])].tolist()) == sorted(expected), "words know other rows"


class Ledger:
    """The acknowledged state of a writer, read from its journal, and its running call."""

    def __init__(self, state: State) -> None:
        self.state = state
        self.pending: dict[str, Any] | None = None
        #: Calls that were acknowledged.
        self.calls = 0

    def read(self, lines: list[str]) -> None:
        for line in lines:
            if not line.endswith("\n"):
                break  # it was killed as it wrote this
            word = json.loads(line)
            if "kind" in word:
                self.pending = word
            elif "open" in word:
                self.settle({one: (value, extra) for one, value, extra in word["open"]})
            elif self.pending is not None:
                if "done" in word:
                    self.state = applied(self.state, self.pending)
                    self.calls += 1
                self.pending = None

    def settle(self, found: State) -> None:
        """Take what is found: the call under way is there wholly or not at all."""
        allowed, pending = [self.state], self.pending
        if pending is not None and not (
            pending["kind"] == "insert" and set(pending["ids"]) & self.state.keys()
        ):
            allowed.append(applied(self.state, pending))
        assert found in allowed, f"{len(found)} rows are none of {[len(one) for one in allowed]}: {pending}"
        self.state, self.pending = found, None


def created(path: Path) -> Path:
    schema = pa.schema([("value", pa.int64()), ("extra", pa.int64()), ("text", pa.string())])
    velo.create(path, dim=DIM, metadata=schema, text="text", threads=1).close()
    return path


def kill_one(path: Path, ledger: Ledger, seed: int, durability: str, seconds: float) -> None:
    """Kill one process; the ledger must allow the state of the folder."""
    with child.start(CHILD, path, durability, seed, 0, IDS, 0, 1) as process:
        assert process.stdout is not None
        opened = process.stdout.readline()
        assert "open" in json.loads(opened), "it opens after every kill"
        time.sleep(seconds)
        process.send_signal(signal.SIGKILL)
        ledger.read([opened, *process.stdout.readlines()])
    # A reader may see a call under way only once the next writer has taken it over.
    with velo.open(path, writable=True, threads=1) as index:
        ledger.settle(found_in(index))


def run(folder: Path, count: int, seed: int, durability: str) -> int:
    """Kill `count` processes one after the other over one index; the number of rows in the end."""
    path = created(folder / "kills.velo")
    random = np.random.default_rng(seed)
    ledger = Ledger({})
    for turn in range(count):
        kill_one(path, ledger, seed + turn, durability, float(random.uniform(0, 0.25)))
    velo.verify(path)
    return len(ledger.state)


class Writer:
    """One of several writers of a folder: processes that follow one another, and their ledger."""

    def __init__(self, path: Path, number: int, writers: int, durability: str) -> None:
        self.ledger = Ledger({})
        #: Ids with every value that it may have given them.
        self.given: set[tuple[int, int]] = set()
        self._journal = path.with_name(f"journal-{number}")
        self._arguments = path, durability, number, writers

    def start(self, seed: int) -> None:
        path, durability, number, writers = self._arguments
        with self._journal.open("w") as told:
            self._process = child.start(
                CHILD, path, durability, seed, number * IDS, FEW_IDS, number, writers, stdout=told
            )

    def await_first_call(self) -> None:
        while '"done"' not in self._journal.read_text():
            assert self._process.poll() is None, "a writer ended by itself"
            time.sleep(0.02)

    def stop(self, seconds: float) -> None:
        """Let it hold what it holds for a while."""
        self._process.send_signal(signal.SIGSTOP)
        time.sleep(seconds)
        self._process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def read(self) -> None:
        """Read the journal of the killed process."""
        assert self._process.returncode == -signal.SIGKILL, "a writer ended by itself"
        lines = self._journal.read_text().splitlines(keepends=True)
        for word in (json.loads(line) for line in lines if line.endswith("\n")):
            if "kind" in word:
                self.given.update(zip(word["ids"], word["values"], strict=True))
        self.ledger.read(lines)


def run_beside(
    folder: Path, writers: int, seconds: float, seed: int, durability: str, pause_s: float = 2.0
) -> tuple[int, int]:
    """Stop or kill one of several processes that write to one index, after a pause of up to `pause_s`.

    Returns the numbers of kills and of acknowledged calls.
    """
    path = created(folder / "beside.velo")
    random = np.random.default_rng(seed)
    each = [Writer(path, number, writers, durability) for number in range(writers)]
    kills = 0
    for one in each:
        one.start(int(random.integers(1 << 31)))
    try:
        for one in each:
            one.await_first_call()
        ends_at = time.monotonic() + seconds
        while time.monotonic() < ends_at:
            time.sleep(float(random.uniform(0, pause_s)))
            one = each[int(random.integers(writers))]
            if random.random() < 0.2:
                one.stop(float(random.uniform(0, 1.0)))
                continue
            one.kill()
            one.read()
            one.start(int(random.integers(1 << 31)))
            kills += 1
    finally:
        for one in each:
            one.kill()
    velo.verify(path)
    # A reader may see a call under way only once the next writer has taken it over.
    with velo.open(path, writable=True, threads=1) as index:
        found = found_in(index)
    ticks = path.with_name(f"{path.name}.counted").read_bytes()
    for number, one in enumerate(each):
        one.read()
        first = number * IDS
        one.ledger.settle({key: row for key, row in found.items() if first <= key < first + IDS})
        assert one.ledger.calls > 0, f"writer {number} wrote nothing"
        counted = int.from_bytes(ticks[8 * number : 8 * number + 8], "little")
        assert found.get(TICKS + number, (0, 0))[0] >= counted, f"writer {number} has counted to {counted}"
        one.ledger.calls += counted
    given = set().union(*(one.given for one in each))
    strange = [key for key, row in found.items() if SHARED <= key < TICKS and (key, row[0]) not in given]
    assert not strange, f"ids {strange} have values that no writer gave them"
    return kills, sum(one.ledger.calls for one in each)


def main() -> None:
    """Kill as often, or for as long, as asked."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=500)
    parser.add_argument("--minutes", type=float, help="of several writers at once")
    parser.add_argument("--writers", type=int, default=6)
    parser.add_argument("--pause-s", type=float, default=6.0, help="the longest between two kills")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--durability", default="sync", choices=["sync", "interval", "process"])
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="velo-kills-") as folder:
        if asked.minutes is None:
            rows = run(Path(folder), asked.count, asked.seed, asked.durability)
            done = f"{asked.count} kills, {rows} rows in the end"
        else:
            seconds = 60 * asked.minutes
            how = asked.writers, seconds, asked.seed, asked.durability, asked.pause_s
            kills, calls = run_beside(Path(folder), *how)
            done = f"{kills} kills, {calls} acknowledged calls"
    print(f"{done} (seed {asked.seed}, {asked.durability}): nothing lost")


if __name__ == "__main__":
    main()
