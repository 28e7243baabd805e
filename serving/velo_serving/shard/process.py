"""The program of the process of one shard, which ``hosting`` starts.

It reads one line of JSON, opens the shard, writes its health, and answers connections until some seconds
after its input ends. A further line names the next generation; after a restart the first line does.
"""

from __future__ import annotations

import ctypes
import dataclasses
import json
import os
import signal
import sys
import threading
import time
from typing import Any, Final

import msgspec

from velo_serving.catalog.spec import ShardSpec
from velo_serving.protocol.loops import short_pauses
from velo_serving.shard.shard import Shard
from velo_serving.transport.server import ShardHost, ShardServer

#: What a line begins with that asks something of the parent, or tells it something later.
QUESTION: Final = "?"

#: Of ``<sys/prctl.h>``.
PR_SET_PDEATHSIG: Final = 1

#: How often we look whether gateways have left.
LOOK_S = 0.05


def end_with_parent() -> None:
    """Let the system kill this process once its parent, the only argument of the program, has ended."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != int(sys.argv[1]):  # it ended before
        os._exit(1)


def main() -> None:
    end_with_parent()
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
    with short_pauses():
        while True:
            if message["successor"] is not None:
                server.successor = int(message["successor"])
                threading.Thread(target=_tell_when_left, args=(server,), daemon=True).start()
            line = sys.stdin.readline()
            if not line:
                break
            message = json.loads(line)
    host.close()
    shard.close()  # the parent kills a process that takes too long


def _tell_when_left(server: ShardServer) -> None:
    """Report that no gateway is connected."""
    while server.peers:
        time.sleep(LOOK_S)
    print(QUESTION + "left", flush=True)


if __name__ == "__main__":
    main()
