"""A Ray for tests: one node on this machine, small, quiet, on the loopback address."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from velo_serving.ray_actors import ray

#: Of the object store: nothing large goes through it.
STORE_BYTES = 80 << 20


@contextmanager
def started_ray(resources: Mapping[str, float], labels: Mapping[str, str] | None = None) -> Iterator[None]:
    """A Ray whose one node has these resources and labels; it ends with the block.

    What the environment says when it starts is what its actors and tasks see.
    """
    ray.init(
        num_cpus=2,
        include_dashboard=False,
        object_store_memory=STORE_BYTES,
        log_to_driver=False,
        logging_level=logging.ERROR,
        _node_ip_address="127.0.0.1",
        resources=dict(resources),
        labels=None if labels is None else dict(labels),
    )
    try:
        yield
    finally:
        ray.shutdown()
