"""A program: one gateway over actors that run already, found by the address of their Ray and a name."""

from __future__ import annotations

import sys

from tests.serving.conftest import PATIENT
from velo_serving.hosting.server import bind, run
from velo_serving.on_ray.actors import ray_session
from velo_serving.on_ray.cluster import Cluster
from velo_serving.protocol.options import ServeOptions


def main(address: str, name: str) -> None:
    with bind("127.0.0.1", 0) as listener, ray_session(address), Cluster.connect(name) as cluster:
        run(
            cluster.backend(limits=PATIENT),
            listener,
            ServeOptions(on_ready=lambda url: print(url, flush=True)),
        )


if __name__ == "__main__":
    main(*sys.argv[1:])
