"""A process that writes is killed at random moments; its acknowledged calls are there."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import numpy as np
import pytest

import velo
from tests import child
from tests.live import kills
from tests.long import count

N = 3_000

#: Deletes ids in a seeded order, some at once, and tells its parent, the ledger, what was acknowledged.
CHILD = """
import sys
import numpy as np
import velo
from tests.live import kills

path, seed, durability = sys.argv[1], int(sys.argv[2]), sys.argv[3]
random = np.random.default_rng(seed)
with velo.open(path, writable=True, durability=durability, threads=1) as index:
    print("open", index.info()["live"]["sequence"], flush=True)
    while len(index):
        ids = random.integers(0, {n}, int(random.integers(1, 9))).tolist()
        print("asked", *ids, flush=True)
        index.delete(ids)
        print("done", flush=True)
""".replace("{n}", str(N))


@pytest.mark.parametrize(
    "durability",
    [
        "sync",
        "process",
        pytest.param(
            "interval", marks=pytest.mark.long(guarded_by="tests/live/test_kill.py::test_kills_of_deletes")
        ),
    ],
)
def test_kills_of_deletes(tmp_path: Path, random: np.random.Generator, durability: str) -> None:
    path = tmp_path / "a.velo"
    vectors = np.random.default_rng(1).normal(size=(N, 8)).astype(np.float32)
    velo.build(path, vectors, threads=1, calibrate=False).close()
    acknowledged: set[int] = set()
    kills = count(2, 6, "VELO_TEST_KILLS")
    for turn in range(kills):
        with child.start(CHILD, path, turn, durability) as process:
            assert process.stdout is not None
            assert process.stdout.readline().startswith("open"), "it opens after every kill"
            least = 4 if turn == kills - 1 else 0  # the last one has something to tell
            told = [process.stdout.readline() for _ in range(int(random.integers(least, 40)))]
            time.sleep(float(random.uniform(0, 0.004)))
            process.send_signal(signal.SIGKILL)
            told += process.stdout.readlines()
        pending: set[int] = set()
        for line in told:
            word, *ids = line.split()
            if word == "asked":
                pending = set(map(int, ids))
            elif word == "done":
                acknowledged |= pending
                pending = set()
        # A reader may see the call under way only once the next writer has taken it over.
        with velo.open(path, writable=True, threads=1) as index:
            found = index.search(vectors[:1], N, list_size=4096)
            live = set(found.ids[0, : int(found.counts[0])].tolist())
            dead = set(range(N)) - live
            assert acknowledged <= dead, "an acknowledged delete was lost"
            # The call under way is there wholly or not at all.
            assert dead - acknowledged in (set(), pending - acknowledged)
            acknowledged = dead
    assert velo.verify(path) > 0
    assert acknowledged


@pytest.mark.parametrize("durability", ["sync", "process"])
def test_kills_of_a_mixed_load(tmp_path: Path, durability: str) -> None:
    seed = int.from_bytes(os.urandom(4), "little")
    print("seed", seed)
    kills.run(tmp_path, count(2, 12, "VELO_TEST_KILLS"), seed, durability)


@pytest.mark.parametrize("durability", ["sync", "interval"])
def test_kills_of_one_of_several_writers(tmp_path: Path, durability: str) -> None:
    seed = int.from_bytes(os.urandom(4), "little")
    print("seed", seed)
    killed, calls = kills.run_beside(tmp_path, 3, count(6, 60), seed, durability)
    print(f"{killed} kills, {calls} calls")
