"""What happens to the server in ``bench soak``: processes killed and stopped, builds exchanged."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bench.commands.soak_load import Build, Call, Ledger
from velo_serving import Client

__all__ = ["ANNOUNCED", "Events", "Window", "children_of"]

#: How long a process stays stopped.
STOPPED_S = 2.5

#: What may still come of an event after all shards are up again.
GRACE_S = 1.5

RECOVER_LIMIT_S = 90.0

#: Connections that are asked whether all is well: they spread over the gateways.
ASKED = 12

_WRITER_AWAY = frozenset(
    ("write", name) for name in ("ShardUnavailableError", "PartialWriteError", "NoShardAnsweredError")
)
_LATE = frozenset([("write", "DeadlineExceededError")])
_RESET = frozenset((kind, "ConnectionFailedError") for kind in ("read", "write"))

#: What the documentation says may come of each event, as (kind of call, outcome). All else is a fault: a read
#: that fails while one of two replicas is away, any error while a build takes the place of another.
ANNOUNCED: Mapping[str, frozenset[tuple[str, str]]] = {
    "a replica that writes is killed": _WRITER_AWAY,
    "a replica that reads is killed": frozenset(),
    "a replica that writes is stopped": _WRITER_AWAY | _LATE,
    "a replica that reads is stopped": frozenset(),
    "both replicas of a shard are killed": _WRITER_AWAY
    | {("read", "partial"), ("read", "NoShardAnsweredError"), ("read", "ShardUnavailableError")},
    "a gateway is killed": _RESET,
    "a gateway is stopped": frozenset(),
    "another build is published": frozenset(),
}


@dataclass
class Window:
    """An event, from before it happened until nothing may come of it any more."""

    what: str
    start_s: float
    end_s: float = float("inf")
    recovered_s: float = float("nan")

    def meets(self, call: Call) -> bool:
        """Whether any of it lies within a call."""
        return self.start_s <= call.at_s + call.took_s and call.at_s <= self.end_s

    def announces(self, call: Call) -> bool:
        """Whether what came of a call was to be expected."""
        return self.meets(call) and (call.kind, call.outcome) in ANNOUNCED[self.what]


def children_of(parent: int, module: str) -> list[int]:
    """Processes that a process started, by the module that they run; the oldest first."""
    found = []
    for folder in Path("/proc").iterdir():
        try:
            stat = (folder / "stat").read_text().rpartition(")")[2].split()
            words = (folder / "cmdline").read_bytes().split(b"\0")
        except (OSError, IndexError):
            continue  # no process, or one that just ended
        if int(stat[1]) == parent and module.encode() in words and stat[0] != "Z":
            found.append((int(stat[19]), int(folder.name)))
    return [pid for _, pid in sorted(found)]


class Events:
    """One event after another, each until all is well again.

    Parameters
    ----------
    server : int
        The process that started all others.
    ledger : Ledger
    connect : callable
        A client with an admin key.
    builds : tuple of Build
    shards, replicas, workers : int
    seed : int
    """

    def __init__(
        self,
        server: int,
        ledger: Ledger,
        connect: Callable[[], Client],
        builds: tuple[Build, Build],
        *,
        shards: int,
        replicas: int,
        workers: int,
        seed: int,
    ) -> None:
        self.windows: list[Window] = []
        self._server = server
        self._ledger = ledger
        self._connect = connect
        self._builds = builds
        self._processes = shards * replicas
        self._shards = shards
        self._replicas = replicas
        self._workers = workers
        self._draw = np.random.default_rng(seed)
        self._version = ""
        # One gateway is never killed: whatever it does not give back would show after half an hour.
        self._kept = self._gateways()[0]

    def _gateways(self) -> list[int]:
        return children_of(self._server, "velo_serving.hosting.gateway_process")

    def _shard_pids(self) -> list[int]:
        return children_of(self._server, "velo_serving.shard.process")

    def run(self, what: str) -> Window:
        """Let something happen and wait until all is well.

        Raises
        ------
        TimeoutError
            It does not become well.
        """
        window = Window(what, self._ledger.now())
        self.windows.append(window)
        self._ledger.disturbed = True
        if what == "another build is published":
            self._publish()
        else:
            stopped = what.endswith("stopped")
            pids = self._victims(what)
            for pid in pids:
                os.kill(pid, signal.SIGSTOP if stopped else signal.SIGKILL)
            if stopped:
                time.sleep(STOPPED_S)
                for pid in pids:
                    os.kill(pid, signal.SIGCONT)
        self.recover(what)
        window.recovered_s = self._ledger.now()
        time.sleep(GRACE_S)
        window.end_s = self._ledger.now()
        self._ledger.disturbed = False
        return window

    def _victims(self, what: str) -> list[int]:
        if "gateway" in what:
            gateways = self._gateways()
            if what.endswith("killed"):
                gateways = [pid for pid in gateways if pid != self._kept]
            return [int(self._draw.choice(gateways))]
        with self._connect() as client:
            pids = {shard["name"]: shard["pid"] for shard in client.info()["shards"]}
        shard = int(self._draw.integers(self._shards))
        if what.startswith("both"):
            return [pids[f"{shard}/{replica}"] for replica in range(self._replicas)]
        return [pids[f"{shard}/{0 if 'writes' in what else 1}"]]

    def _publish(self) -> None:
        former, number = self._ledger.serving
        self._ledger.serving = (None, number)
        build = self._builds[0 if former == self._builds[1].name else 1]
        self._version = f"{build.name}-{number + 1}"
        with self._connect() as client:
            client.publish(build.path, self._version)
        self.recover("another build is published")
        # Only now: until its processes are gone a build has a writer, and cannot be published again.
        self._ledger.serving = (build.name, number + 1)

    def recover(self, what: str) -> None:
        """Wait until every gateway says that every replica is up, and no process is there but these."""
        end = time.monotonic() + RECOVER_LIMIT_S
        told: Any = None
        while time.monotonic() < end:
            if len(self._gateways()) == self._workers and len(self._shard_pids()) == self._processes:
                well, told = self._all_say_so()
                if well:
                    return
            time.sleep(0.1)
        raise TimeoutError(f"after {what}: not well within {RECOVER_LIMIT_S:g} s: {told}")

    def _all_say_so(self) -> tuple[bool, Any]:
        clients = [self._connect() for _ in range(ASKED)]
        try:
            for one in clients:
                if not one.ready():  # opens its connection, beside those of the others
                    return False, "not ready"
            for one in clients:
                told = one.info()
                states = [shard["state"] for shard in told["shards"]]
                if told["version"] != self._version or states != ["up"] * self._processes:
                    return False, (told["version"], told["shards"])
            return True, None
        except Exception as error:
            return False, error
        finally:
            for one in clients:
                one.close()
