"""A Ray for tests: one node on this machine, small, quiet, on the loopback address."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from pathlib import Path

from velo_serving.on_ray.actors import ray

#: Of the object store: nothing large goes through it.
STORE_BYTES = 80 << 20


class LocalRay:
    """One Ray for all tests of a run; a test that needs another one ends it, and the next use restarts it.

    Its node has the label ``disks=here``, and so many of each resource as are given.
    """

    def __init__(self, cache: Path, resources: Mapping[str, float]) -> None:
        self._cache, self._resources = cache, dict(resources)
        self._running = False

    def start(self) -> None:
        """Be connected to it."""
        if self._running:
            return
        previous = os.environ.get("VELO_CACHE")
        os.environ["VELO_CACHE"] = str(self._cache)  # where its tasks stage shards, apart from the tests' own
        try:
            ray.init(
                num_cpus=2,
                include_dashboard=False,
                object_store_memory=STORE_BYTES,
                log_to_driver=False,
                logging_level=logging.ERROR,
                _node_ip_address="127.0.0.1",
                resources=self._resources,
                labels={"disks": "here"},
            )
        finally:
            if previous is None:
                del os.environ["VELO_CACHE"]
            else:
                os.environ["VELO_CACHE"] = previous
        self._running = True

    def stop(self) -> None:
        """End it, if it runs."""
        if self._running:
            ray.shutdown()
        self._running = False
