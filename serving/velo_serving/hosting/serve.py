"""Serving from the command line: ``velo serve INDEX``, and with ``--ray`` a collection's shards as actors."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from velo_serving.hosting.processes import ShardProcess, open_processes
from velo_serving.hosting.server import access_of, bind, log_to_stderr, run
from velo_serving.hosting.workers import run_workers
from velo_serving.protocol.options import ServeOptions, takes_options
from velo_serving.routing.directory import ShardDirectory
from velo_serving.routing.local_backend import open_local_backend

#: How long the shards on Ray may take to answer a gateway that starts: all of them, or those that answer.
CONNECT_S = 30.0
CONNECT_PARTIAL_S = 5.0

if TYPE_CHECKING:
    import socket

    from velo_serving.on_ray.cluster import Cluster


@takes_options(ServeOptions, "shards", "local", "gateway")
def serve_local(path: str | Path | Sequence[str | Path], options: ServeOptions) -> None:
    """Serve indexes or sharded collections from this machine until interrupted.

    Parameters
    ----------
    path : path or sequence of paths
        None of them only with `root`.
    **options
        As keywords, those of :class:`ServeOptions` that have nothing to do with Ray.

    Raises
    ------
    PortInUseError, VeloError
        Before anything is opened, or an index cannot be opened.
    """
    _check(options)  # before anything is opened
    with bind(options.host, options.port, options.uds) as listener:
        if options.processes or options.workers > 1 or options.replicas > 1 or options.root is not None:
            how = options.opening | {"replicas": options.replicas, "root": options.root}
            with open_processes(path, partial=not options.require_all, **how) as shards:
                _serve(shards, listener, options)
        else:
            run(open_local_backend(path, limits=options.limits, **options.opening), listener, options)


@takes_options(ServeOptions, "shards", "ray", "address", "gateway")
def serve_ray(path: str | Path, options: ServeOptions) -> None:
    """Start a Ray actor for each shard, serve them until interrupted, stop them.

    The actors outlive this process if it is killed; then other gateways go on answering, and ``stop_ray``
    ends the actors. A Ray of this process's own always ends with it.

    Parameters
    ----------
    path : path
        A sharded build or a single index; every node must see its shards under this path.
    **options
        As keywords, those of :class:`ServeOptions` but `processes` and `root`. The actors are `detached`
        unless the Ray is this process's own.

    Raises
    ------
    PortInUseError, VeloError
        Before anything is started, or as in ``Cluster.start``.
    """
    _check(options)
    from velo_serving.on_ray.actors import ray_session
    from velo_serving.on_ray.cluster import start

    tell = options.on_progress or _tell
    where = options.address
    with bind(options.host, options.port, options.uds) as listener:
        tell("starting Ray; some seconds" if where is None else f"connecting to Ray at {where}")
        with ray_session(where) as own:
            tell("starting an actor for each shard")
            partial = not options.require_all
            with start(path, options, partial=partial, detached=not own, on_progress=tell) as cluster:
                _serve(cluster, listener, options)


@takes_options(ServeOptions, "shards", "ray", "address")
def start_ray(path: str | Path, options: ServeOptions) -> str:
    """Start a Ray actor for each shard and leave them running, for ``serve_connected`` on any machine.

    Parameters
    ----------
    path : path
        As in ``serve_ray``.
    **options
        As keywords, those of :class:`ServeOptions` that say how shards run. The actors are `detached`.

    Returns
    -------
    str
        The name of the collection.

    Raises
    ------
    PlacementError, ClusterExistsError
        No Ray runs there or no node matches a pin, or actors of that name run already.
    """
    from velo_serving.on_ray.actors import ray_session
    from velo_serving.on_ray.cluster import start

    tell = options.on_progress or _tell
    address = options.address or "auto"
    tell(f"connecting to Ray at {address}")
    with ray_session(address):
        tell("starting an actor for each shard")
        return start(path, options, detached=True, on_progress=tell).collection.name


@takes_options(ServeOptions, "gateway", "address")
def serve_connected(name: str, options: ServeOptions) -> None:
    """Serve running actors until interrupted, and leave them running.

    Parameters
    ----------
    name : str
        Of the collection.
    **options
        As keywords, those of :class:`ServeOptions` that a gateway has, and `address`, of the Ray that the
        actors run on, "auto" without it. No Ray is started.

    Raises
    ------
    UnknownCollectionError, PlacementError
        No actors of that name run, or no Ray at that address.
    """
    _check(options)
    from velo_serving.on_ray.actors import ray_session
    from velo_serving.on_ray.cluster import Cluster

    address = options.address or "auto"
    timeout_s = CONNECT_S if options.require_all else CONNECT_PARTIAL_S
    with (
        bind(options.host, options.port, options.uds) as listener,
        ray_session(address),
        Cluster.connect(name, timeout_s=timeout_s, require_all=options.require_all) as cluster,
    ):
        _serve(cluster, listener, options)


def stop_ray(name: str, *, address: str = "auto") -> int:
    """End the actors of a collection, also those that another process started, and wait.

    Parameters
    ----------
    name : str
        Of the collection; all its generations end.
    address : str
        Of the Ray that they run on; "auto" finds one. No Ray is started.

    Returns
    -------
    int
        The number of actors.

    Raises
    ------
    UnknownCollectionError, PlacementError
        As in ``Cluster.end``.
    """
    from velo_serving.on_ray.actors import ray_session
    from velo_serving.on_ray.cluster import Cluster

    with ray_session(address):
        return Cluster.end(name)


def _check(options: ServeOptions) -> None:
    access_of(options)
    log_to_stderr(as_json=options.log_json)


def _serve(
    shards: Cluster | ShardDirectory[ShardProcess], listener: socket.socket, options: ServeOptions
) -> None:
    if options.workers > 1:
        run_workers(shards, listener, options)
    else:
        run(shards.backend(limits=options.limits), listener, options)


def _tell(line: str) -> None:
    print(f"velo: {line}", file=sys.stderr, flush=True)
