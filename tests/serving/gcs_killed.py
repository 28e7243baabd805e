"""A program: shards on Ray, and Ray's own service killed under them. It prints what searches answered."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import time
import traceback
from pathlib import Path

import numpy as np

from tests.serving.conftest import PATIENT
from velo_serving.on_ray.cluster import Cluster
from velo_serving.protocol.types import SearchRequest

#: For how long searches go on without it, and for how many answers at least.
WITHOUT_S = 6.0
ANSWERS_MIN = 50

#: By when a connection that was lost is there again.
BACK_S = 10.0


def children(name: str) -> list[int]:
    """Processes of a name that this one started, or theirs."""
    parents, found = {}, []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")
            except OSError:
                continue  # it ended meanwhile
            state, parent = fields[2].split()[:2]
            parents[int(entry.name)] = int(parent)
            if name in fields[0] and state != "Z":
                found.append(int(entry.name))
    ours = []
    for pid in found:
        at = pid
        while at > 1 and at != os.getpid():
            at = parents.get(at, 0)
        if at == os.getpid():
            ours.append(pid)
    return ours


async def run(cluster: Cluster, dim: int) -> dict[str, int]:
    backend = cluster.backend(limits=PATIENT)
    await backend.start()
    router = backend.collection().router
    queries = np.random.default_rng(1).standard_normal((20, dim)).astype(np.float32)

    async def whole(row: int) -> bool:
        answer = await router.search(SearchRequest(queries[[row % len(queries)]], 5, timeout_s=20.0))
        return answer.shards_answered == router.shards_total

    assert await whole(0)
    (gcs,) = children("gcs_server")
    os.kill(gcs, signal.SIGKILL)
    end, count = time.monotonic() + WITHOUT_S, 0
    while time.monotonic() < end or count <= ANSWERS_MIN:
        assert await whole(count)
        count += 1
    # A connection that is lost is made again without asking Ray: where a shard was is where it is.
    for queue in router._queues:
        queue.channel.reset()
        await queue.probe()
    end = time.monotonic() + BACK_S
    while router.shards_up < router.shards_total:
        assert time.monotonic() < end, router.shards()
        await asyncio.sleep(0.05)
    assert await whole(0)
    assert not children("gcs_server")
    await backend.close()
    return {"answers": count, "shards": router.shards_total}


def main() -> None:
    cluster = Cluster.start(sys.argv[1], threads=1)
    code = 1
    try:
        print(json.dumps(asyncio.run(run(cluster, int(sys.argv[2])))), flush=True)
        code = 0
    except BaseException:
        traceback.print_exc()
    # Ray cannot be ended in its own way any more, not even by an exception.
    for name in ("ray::", "raylet"):
        for pid in children(name):
            os.kill(pid, signal.SIGKILL)
    os._exit(code)


if __name__ == "__main__":
    main()
