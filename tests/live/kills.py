"""Processes that write are killed at random moments of a mixed load; a ledger here says what must be there.

``python -m tests.live.kills --count 500`` kills so many, each after up to a quarter of a second of work.
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

#: Writes in a seeded order; each line on its output says what it is about to do, or that it was done.
CHILD = """
import json, sys
import numpy as np
import velo
from velo.compaction import segment_builder

path, durability = sys.argv[1], sys.argv[3]
seed, dim, ids = int(sys.argv[2]), int(sys.argv[4]), int(sys.argv[5])
if seed % 2:
    segment_builder._RESUMED_ROWS = 1  # every merge goes on after a kill, as only large ones do else
random = np.random.default_rng(seed)

def say(**what):
    print(json.dumps(what), flush=True)

with velo.open(path, writable=True, durability=durability, threads=1) as index:
    say(open=index.info()["live"]["sequence"])
    while True:
        kinds = ["insert", "upsert", "update", "update by filter", "delete", "flush", "optimize"]
        kind = random.choice(kinds, p=[.3, .3, .05, .05, .24, .04, .02])
        chosen = random.choice(ids, int(random.integers(1, 12)), replace=False).tolist()
        values = random.integers(1, 1_000_000, len(chosen)).tolist()
        say(kind=str(kind), ids=chosen, values=values)
        # Now and then a call is larger than the memory for new rows.
        is_large = kind in ("insert", "upsert") and random.random() < 0.2
        index._folders[0].live.delta_bytes_max = 0 if is_large else 64 << 20
        vectors = np.repeat(np.array(values, np.float32)[:, None], dim, axis=1)
        rows = {"value": values, "extra": [0] * len(values), "text": [f"new w{value}" for value in values]}
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
"""


#: The value of each id, which its vector has too, and what updates set.
State: TypeAlias = dict[int, tuple[int, int]]


def applied(state: State, call: dict[str, Any]) -> State:
    """What a call makes of a state."""
    after = dict(state)
    for one, value in zip(call["ids"], call["values"], strict=True):
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
    rows = index.rows(limit=10 * IDS)
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


def kill_one(path: Path, state: State, seed: int, durability: str, seconds: float) -> State:
    """One process, killed; returns what is there afterwards, which the ledger allows."""
    with child.start(CHILD, path, seed, durability, DIM, IDS) as process:
        assert process.stdout is not None
        assert "open" in json.loads(process.stdout.readline()), "it opens after every kill"
        time.sleep(seconds)
        process.send_signal(signal.SIGKILL)
        told = process.stdout.readlines()
    pending: dict[str, Any] | None = None
    for line in told:
        if not line.endswith("\n"):
            break
        word = json.loads(line)
        if "kind" in word:
            pending = word
        elif pending is not None:
            state = applied(state, pending) if "done" in word else state
            pending = None
    # The call under way is there wholly or not at all.
    allowed = [state]
    if pending is not None and not (pending["kind"] == "insert" and set(pending["ids"]) & state.keys()):
        allowed.append(applied(state, pending))
    with velo.open(path, threads=1) as index:
        found = found_in(index)
    assert found in allowed, f"seed {seed}: {len(found)} rows are none of {[len(one) for one in allowed]}"
    return found


def run(folder: Path, count: int, seed: int, durability: str) -> int:
    """Kill `count` processes one after the other over one index; the number of rows in the end."""
    path = folder / "kills.velo"
    schema = pa.schema([("value", pa.int64()), ("extra", pa.int64()), ("text", pa.string())])
    velo.create(path, dim=DIM, metadata=schema, text="text", threads=1).close()
    random = np.random.default_rng(seed)
    state: State = {}
    for turn in range(count):
        state = kill_one(path, state, seed + turn, durability, float(random.uniform(0, 0.25)))
    velo.verify(path)
    return len(state)


def main() -> None:
    """Kill as often as asked."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=500)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--durability", default="sync", choices=["sync", "interval", "process"])
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="velo-kills-") as folder:
        rows = run(Path(folder), asked.count, asked.seed, asked.durability)
    print(
        f"{asked.count} kills (seed {asked.seed}, {asked.durability}): nothing lost, {rows} rows in the end"
    )


if __name__ == "__main__":
    main()
