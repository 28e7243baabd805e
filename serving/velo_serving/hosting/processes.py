"""Shards in processes of their own, without Ray: started here, watched, and restarted when they die."""

from __future__ import annotations

import dataclasses
import secrets
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec

from velo_serving.catalog.launcher import About, share_of_cores
from velo_serving.catalog.records import Place
from velo_serving.catalog.root import Root
from velo_serving.catalog.spec import ShardSpec
from velo_serving.hosting.child import Child
from velo_serving.protocol.types import ShardHealth
from velo_serving.routing.directory import ShardDirectory, described
from velo_serving.transport.endpoint import Endpoint, abstract_path, this_host


class ShardProcess:
    """The process of a shard: restarted when it dies, at the same endpoint."""

    #: Threads of the shards so far.
    threads = 0

    def __init__(self, spec: ShardSpec, *, version: str = "") -> None:
        self.spec = dataclasses.replace(spec, processor=ShardProcess.threads)
        ShardProcess.threads += spec.threads or 1
        self.endpoint = Endpoint(secrets.token_urlsafe(32), this_host(), abstract_path(spec.name))
        self._successor: int | None = None
        self._left = threading.Event()

        def message() -> dict[str, Any]:
            return {
                "spec": dataclasses.asdict(self.spec),
                "token": self.endpoint.token,
                "version": version,
                "path": self.endpoint.path,
                "successor": self._successor,
            }

        self._child = Child(
            f"shard {spec.name}",
            "velo_serving.shard.process",
            message,
            on_question=lambda _line: self._left.set(),
        )

    @property
    def pid(self) -> int:
        return self._child.pid

    @property
    def starts(self) -> int:
        return self._child.starts

    def launch(self) -> None:
        self._child.launch()

    def close(self) -> None:
        self._child.close()

    def wait_until_open(self) -> ShardHealth:
        return msgspec.json.decode(self._child.first_line(), type=ShardHealth)

    def succeed(self, generation: int) -> None:
        self._successor = generation
        self._child.tell({"successor": generation})

    def wait_until_left(self, timeout_s: float) -> None:
        self._left.wait(timeout_s)


Processes = Mapping[Place, ShardProcess]


class _ProcessLauncher:
    """A process of this machine for each shard."""

    def start(self, about: About, only: str | None = None) -> dict[Place, ShardProcess]:
        version = about.collection.version
        started = {place: ShardProcess(spec, version=version) for place, spec in about.specs(only).items()}
        try:
            for one in started.values():
                one.launch()
        except BaseException:
            self.end(started)
            raise
        return started

    def healths(
        self, about: About, started: Processes, timeout_s: float, progress: Callable[[str], None] | None
    ) -> dict[Place, ShardHealth]:
        return {place: one.wait_until_open() for place, one in started.items()}

    def succeed(self, former: Processes, generation: int) -> None:
        for one in former.values():
            one.succeed(generation)

    def await_left(self, former: Processes, timeout_s: float) -> None:
        deadline = time.monotonic() + timeout_s
        for one in former.values():
            one.wait_until_left(max(0.0, deadline - time.monotonic()))

    def end(self, started: Processes) -> None:
        with ThreadPoolExecutor(max(1, len(started))) as pool:
            list(pool.map(ShardProcess.close, started.values()))

    def replace(self, former: ShardProcess, new: ShardProcess) -> tuple[ShardProcess, ShardProcess]:
        return new, former


def open_processes(
    paths: str | Path | Sequence[str | Path],
    *,
    root: str | Path | None = None,
    partial: bool = False,
    **options: Any,
) -> ShardDirectory[ShardProcess]:
    """Open indexes or sharded collections, each shard in a process of its own.

    The collections in the folder ``root`` are served, too, and clients may create others there. The options
    are ``replicas`` and those of ``velo.open``. If ``partial``, shards may be missing.
    """
    folder = None if root is None else Root(root)
    collections, chosen = described(paths, folder, options)
    if chosen.threads is None:
        count = chosen.replicas * sum(len(one.shards) for one in collections)
        chosen = dataclasses.replace(chosen, threads=share_of_cores(count))
    opened = ShardDirectory(_ProcessLauncher(), chosen, folder, endpoint_of=lambda one: one.endpoint)
    opened.open(collections, partial=partial)
    return opened
