"""The program of one shard's process: ``python -m velo_serving.shard.process``, which hosting starts.

It reads one line of JSON, opens the shard, answers connections, says how it is in one line, and ends with its
parent: when the pipe that it was started with closes. A further line names the generation that comes after;
the first line does, too, where the process is started again then.
"""

from __future__ import annotations

import dataclasses
import json
import signal
import sys
import threading
import time
from typing import Any, Final

import msgspec

from velo_serving.places.spec import ShardSpec
from velo_serving.shard.shard import Shard
from velo_serving.wire.server import ShardHost, ShardServer

__all__ = ["QUESTION", "main"]

#: What a line begins with that asks something of the parent, or tells it something later.
QUESTION: Final = "?"

#: How often we look whether gateways have left.
LOOK_S = 0.05


def main() -> None:
    """Serve one shard until the parent is gone."""
    # An interrupt of the terminal reaches all its processes; when this one ends, its parent decides.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    message: dict[str, Any] = json.loads(sys.stdin.readline())
    shard = Shard(ShardSpec(**message["spec"]))
    health = shard.health()
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    server = ShardServer(shard, token=message["token"], version=message["version"])
    host = ShardHost(server)
    host.start(path=message["path"])
    health = dataclasses.replace(health, version=message["version"])
    print(msgspec.json.encode(health).decode(), flush=True)
    while True:
        if message["successor"] is not None:
            server.successor = int(message["successor"])
            threading.Thread(target=_tell_when_left, args=(server,), daemon=True).start()
        line = sys.stdin.readline()
        if not line:
            break
        message = json.loads(line)
    host.close()
    shard.close()


def _tell_when_left(server: ShardServer) -> None:
    """Say when no gateway is connected any more."""
    while server.peers:
        time.sleep(LOOK_S)
    print(QUESTION + "left", flush=True)


if __name__ == "__main__":
    main()
