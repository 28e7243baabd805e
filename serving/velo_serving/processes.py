"""Shards in processes of their own, without Ray: started here, watched, and started again when they die.

What they answer travels as it does between Ray's actors and a gateway (``wire``); who starts them differs.
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
import os
import secrets
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from velo_serving.backend import Backend, ServedCollection
from velo_serving.collection import Collection, read_collection
from velo_serving.errors import ShardUnavailableError
from velo_serving.local_backend import check_shard, split_memory
from velo_serving.router import Router, RouterLimits
from velo_serving.shard import ShardSpec
from velo_serving.types import ShardHealth
from velo_serving.wire.channel import SocketChannel, at
from velo_serving.wire.endpoint import Endpoint, abstract_path, this_host

__all__ = ["ShardProcess", "open_process_backend"]

#: Pauses before a process that died is started again: the first, and the most.
RESTART_S = 0.05
RESTART_MAX_S = 5.0

#: How long a process may take to end before it is killed.
END_S = 5.0


class ShardProcess:
    """A shard's process: started again whenever it dies, at the same place.

    Parameters
    ----------
    spec : ShardSpec
    version : str
        Of the collection.

    Attributes
    ----------
    endpoint : Endpoint
        Where it listens.
    starts : int
        How often it was started.
    """

    def __init__(self, spec: ShardSpec, *, version: str = "") -> None:
        self.spec = spec
        self.endpoint = Endpoint(secrets.token_urlsafe(32), this_host(), abstract_path(spec.name))
        self.starts = 0
        self._version = version
        self._closing = threading.Event()
        self._lock = threading.Lock()
        self._process: subprocess.Popen[str] | None = None
        self._watch = threading.Thread(target=self._keep_alive, name=f"velo-watch-{spec.name}", daemon=True)

    @property
    def pid(self) -> int:
        """Of the process as it is now."""
        with self._lock:
            return 0 if self._process is None else self._process.pid

    def launch(self) -> None:
        """Start the process without waiting for it."""
        where = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
        process = subprocess.Popen(
            [sys.executable, "-m", "velo_serving.shard_process"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=where,
        )
        with self._lock:
            self._process = process
            self.starts += 1
        assert process.stdin is not None
        message = {
            "spec": dataclasses.asdict(self.spec),
            "token": self.endpoint.token,
            "version": self._version,
            "path": self.endpoint.path,
        }
        try:
            process.stdin.write(json.dumps(message) + "\n")
            process.stdin.flush()
        except BrokenPipeError:
            pass  # it died at once, which the next to look will see

    def wait_until_open(self) -> ShardHealth:
        """Wait for the process to have opened its shard, and from then on keep it alive.

        Returns
        -------
        ShardHealth
            What the shard says of itself.

        Raises
        ------
        VeloError
            Why the shard cannot be opened.
        """
        assert self._process is not None
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise ShardUnavailableError(
                f"the process of shard {self.spec.name} ended with {self._process.wait()} as it started"
            )
        health = msgspec.json.decode(line, type=ShardHealth)
        if health.failure is not None:
            raise health.failure.to_error()
        self._watch.start()
        return health

    def _keep_alive(self) -> None:
        pause_s = RESTART_S
        while True:
            process = self._process
            assert process is not None
            process.wait()
            self._let_go(process)
            if self._closing.wait(pause_s):
                return
            pause_s = min(2 * pause_s, RESTART_MAX_S)
            self.launch()
            assert self._process is not None
            assert self._process.stdout is not None
            if self._process.stdout.readline():
                pause_s = RESTART_S

    @staticmethod
    def _let_go(process: subprocess.Popen[str]) -> None:
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                pipe.close()

    def close(self) -> None:
        """End the process for good; twice is once."""
        self._closing.set()
        process = self._process
        if process is None:
            return
        if process.stdin is not None:
            process.stdin.close()  # its sign to end
        try:
            process.wait(END_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        if self._watch.is_alive():
            self._watch.join()
        else:
            self._let_go(process)


def open_process_backend(
    paths: str | Path | Sequence[str | Path], *, limits: RouterLimits | None = None, **options: Any
) -> Backend:
    """Open indexes or sharded collections, each shard in a process of its own.

    Parameters
    ----------
    paths : path or sequence of paths
        Each becomes a collection, named after its folder.
    limits : RouterLimits, optional
        Of each collection.
    **options
        ``memory``, ``threads``, ``io``, ``plan``, as in ``velo.open``, for each collection.
    """
    folders = [paths] if isinstance(paths, str | Path) else list(paths)
    memory = options.pop("memory", None)
    collections = [read_collection(path) for path in folders]
    started: list[list[ShardProcess]] = []
    try:
        for collection in collections:
            budgets = split_memory(collection, memory)
            started.append(
                [
                    ShardProcess(entry.spec(memory=budget, **options), version=collection.version)
                    for entry, budget in zip(collection.shards, budgets, strict=True)
                ]
            )
        everyone = [one for processes in started for one in processes]
        for one in everyone:
            one.launch()  # all at once: the slowest sets the time
        served = [
            _served(collection, processes, limits)
            for collection, processes in zip(collections, started, strict=True)
        ]
    except BaseException:
        for processes in started:
            for one in processes:
                one.close()
        raise

    async def close() -> None:
        await asyncio.gather(*(asyncio.to_thread(one.close) for one in everyone))

    return Backend(served, on_close=close)


def _served(
    collection: Collection, processes: Sequence[ShardProcess], limits: RouterLimits | None
) -> ServedCollection:
    healths = [one.wait_until_open() for one in processes]
    for health, one in zip(healths, processes, strict=True):
        check_shard(collection, health, one.spec.name)
    channels = [SocketChannel(one.spec.name, at(one.endpoint)) for one in processes]
    identities = [health.identity for health in healths]
    first = healths[0]
    return ServedCollection(
        collection.name,
        sum(health.n for health in healths),
        first.dim,
        first.metric,
        Router(collection.name, channels, limits=limits, identities=identities),
        tuple(processes),
    )
