"""The processes of a killed server end soon, and the next server writes to the same index."""

from __future__ import annotations

import os
import time
from pathlib import Path

import numpy as np

import velo
from tests.long import count
from tests.serving.conftest import Served, children
from velo_serving import Client

#: The processes of a killed server end within this time, on a busy machine.
END_S = 1.0

ROWS = count(6_000, 40_000)
DIM = 32


def test_the_processes_of_a_killed_server_end_and_release_the_index(
    tmp_path: Path, random: np.random.Generator
) -> None:
    vectors = random.normal(size=(ROWS, DIM)).astype(np.float32)
    path = tmp_path / "shop.velo"
    ids = np.arange(ROWS)
    velo.build(path, vectors, ids=ids, store_vectors=True, calibrate=False).close()
    how = (str(path), "--writable", "--processes", "--threads", "1", "--workers", "2")
    served = Served(*how)
    try:
        with Client(served.url, collection="shop") as client:
            client.delete([3])
            client.upsert(vectors[:1], [ROWS])
            client.optimize(wait=False)  # much longer than a process may live on
        processes = [*children(served, b"shard.process"), *children(served, b"gateway_process")]
        assert len(processes) == 3
    finally:
        served.kill()
    killed_at = time.monotonic()
    while [pid for pid in processes if os.path.exists(f"/proc/{pid}/exe")]:  # none of a zombie
        assert time.monotonic() < killed_at + END_S, "the processes of the killed one live on"
        time.sleep(0.01)
    again = Served(*how)
    try:
        with Client(again.url, collection="shop") as client:
            assert client.get([ROWS])["id"].to_pylist() == [ROWS]
            assert client.count() == ROWS
    finally:
        again.stop()
