"""The events of ``bench soak``: processes killed and stopped, builds exchanged."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from bench.commands.soak_load import Build, Call, Ledger
from velo_serving import Client

#: Seconds that a process stays stopped.
STOPPED_S = 2.5

#: Seconds after all shards are up again in which an event may still have effects.
GRACE_S = 1.5

RECOVER_LIMIT_S = 90.0

#: Connections that are asked whether all is well: they spread over the gateways.
ASKED = 12

_AWAY = {"ShardUnavailableError", "PartialWriteError", "NoShardAnsweredError"}
_RESET = {"ConnectionFailedError"}

#: The outcomes of reads and of writes that the documentation announces for each event. All else is a fault: a
#: read that fails while one of two replicas is away, any error while a build replaces another.
ANNOUNCED: Mapping[str, Mapping[str, set[str]]] = {
    "a replica that writes is killed": {"write": _AWAY},
    "a replica that reads is killed": {},
    "a replica that writes is stopped": {"write": _AWAY | {"DeadlineExceededError"}},
    "a replica that reads is stopped": {},
    "both replicas of a shard are killed": {
        "write": _AWAY,
        "read": {"partial", "NoShardAnsweredError", "ShardUnavailableError"},
    },
    "a gateway is killed": {"read": _RESET, "write": _RESET},
    "a gateway is stopped": {},
    "another build is published": {},
}


@dataclass
class Window:
    """An event, from before it happened until nothing may come of it any more."""

    what: str
    start_s: float
    end_s: float = float("inf")
    recovered_s: float = float("nan")

    def meets(self, call: Call) -> bool:
        """Whether it overlaps a call."""
        return self.start_s <= call.at_s + call.took_s and call.at_s <= self.end_s

    def announces(self, call: Call) -> bool:
        """Whether what came of a call was to be expected."""
        return self.meets(call) and call.outcome in ANNOUNCED[self.what].get(call.kind, set())


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


@dataclass
class Events:
    """One event after another, each until all is well again, in the processes that ``server`` started."""

    server: int
    ledger: Ledger
    connect: Callable[[], Client]
    builds: tuple[Build, Build]
    shards: int
    replicas: int
    workers: int
    seed: int
    windows: list[Window] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._draw = np.random.default_rng(self.seed)
        self._version = ""
        # One gateway is never killed: whatever it does not give back would show after half an hour.
        self._kept = self._gateways()[0]

    def _gateways(self) -> list[int]:
        return children_of(self.server, "velo_serving.hosting.gateway_process")

    def _shard_pids(self) -> list[int]:
        return children_of(self.server, "velo_serving.shard.process")

    def run(self, what: str) -> Window:
        """Let something happen and wait until all is well; TimeoutError where it does not become so."""
        window = Window(what, self.ledger.now())
        self.windows.append(window)
        self.ledger.disturbed = True
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
        window.recovered_s = self.ledger.now()
        time.sleep(GRACE_S)
        window.end_s = self.ledger.now()
        self.ledger.disturbed = False
        return window

    def _victims(self, what: str) -> list[int]:
        if "gateway" in what:
            gateways = self._gateways()
            if what.endswith("killed"):
                gateways = [pid for pid in gateways if pid != self._kept]
            return [int(self._draw.choice(gateways))]
        with self.connect() as client:
            pids = {shard["name"]: shard["pid"] for shard in client.info()["shards"]}
        shard = int(self._draw.integers(self.shards))
        if what.startswith("both"):
            return [pids[f"{shard}/{replica}"] for replica in range(self.replicas)]
        return [pids[f"{shard}/{0 if 'writes' in what else 1}"]]

    def _publish(self) -> None:
        previous, number = self.ledger.serving
        self.ledger.serving = (None, number)
        build = self.builds[0 if previous == self.builds[1].name else 1]
        self._version = f"{build.name}-{number + 1}"
        with self.connect() as client:
            client.publish(build.path, self._version)
        self.recover("another build is published")
        # Only now: until its processes are gone a build has a writer, and cannot be published again.
        self.ledger.serving = (build.name, number + 1)

    def recover(self, what: str) -> None:
        """Wait until every gateway says that every replica is up, and no process is there but these."""
        end = time.monotonic() + RECOVER_LIMIT_S
        told: Any = None
        while time.monotonic() < end:
            if (
                len(self._gateways()) == self.workers
                and len(self._shard_pids()) == self.shards * self.replicas
            ):
                well, told = self._all_say_so()
                if well:
                    return
            time.sleep(0.1)
        raise TimeoutError(f"after {what}: not well within {RECOVER_LIMIT_S:g} s: {told}")

    def _all_say_so(self) -> tuple[bool, Any]:
        clients = [self.connect() for _ in range(ASKED)]
        try:
            for one in clients:
                if not one.ready():  # opens its connection, beside those of the others
                    return False, "not ready"
            for one in clients:
                told = one.info()
                states = [shard["state"] for shard in told["shards"]]
                if told["version"] != self._version or states != ["up"] * (self.shards * self.replicas):
                    return False, (told["version"], told["shards"])
            return True, None
        except Exception as error:
            return False, error
        finally:
            for one in clients:
                one.close()
