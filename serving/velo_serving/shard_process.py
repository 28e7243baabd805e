"""The program of one shard's process: ``python -m velo_serving.shard_process``, started by ``processes.py``.

It reads one line of JSON, opens the shard, answers connections, says how it is in one line, and ends with its
parent: when the pipe that it was started with closes.
"""

from __future__ import annotations

import dataclasses
import json
import signal
import sys
from typing import Any

import msgspec

from velo_serving.shard import Shard, ShardSpec
from velo_serving.wire.server import ShardHost, ShardServer

__all__ = ["main"]


def main() -> None:
    """Serve one shard until the parent is gone."""
    # An interrupt of the terminal reaches all its processes; when this one ends, its parent decides.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    message: dict[str, Any] = json.loads(sys.stdin.readline())
    shard = Shard(ShardSpec(**message["spec"]))
    health = shard.health()
    host = ShardHost(ShardServer(shard, token=message["token"], version=message["version"]))
    host.start(path=message["path"])
    health = dataclasses.replace(health, version=message["version"])
    print(msgspec.json.encode(health).decode(), flush=True)
    sys.stdin.read()
    host.close()
    shard.close()


if __name__ == "__main__":
    main()
