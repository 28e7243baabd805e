"""Serving from the command line: ``velo serve INDEX``, and with ``--ray`` a collection's shards as actors."""

from __future__ import annotations

import socket
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from velo.errors import InvalidArgumentError
from velo_serving.hosting.processes import backend_of, open_processes
from velo_serving.hosting.server import access_of, bind, run, say_url, url_of
from velo_serving.routing.local_backend import open_local_backend
from velo_serving.words.limits import RouterLimits

if TYPE_CHECKING:
    from velo_serving.gateway import GatewayLimits
    from velo_serving.gateway.access import Access
    from velo_serving.on_ray.cluster import Cluster

__all__ = ["serve_connected", "serve_local", "serve_ray", "start_ray", "stop_ray"]

DURABILITIES = ("sync", "interval", "process")


def serve_local(
    path: str | Path | Sequence[str | Path],
    *,
    host: str = "127.0.0.1",
    port: int = 8000,
    memory: int | float | str | None = None,
    threads: int | None = None,
    io: str = "auto",
    plan: str = "auto",
    limits: RouterLimits | None = None,
    gateway_limits: GatewayLimits | None = None,
    on_ready: Callable[[str], None] | None = None,
    processes: bool = False,
    ready_shards: int | None = None,
    drain_s: float = 0.0,
    workers: int = 1,
    replicas: int = 1,
    slow_s: float | None = None,
    log_json: bool = False,
    writable: bool = False,
    durability: str = "sync",
    api_keys: str | Path | None = None,
    cors_origins: Sequence[str] = (),
    ssl_certfile: str | Path | None = None,
    ssl_keyfile: str | Path | None = None,
    ssl_keyfile_password: str | None = None,
    ssl_ca_certs: str | Path | None = None,
    aliases: str | Path | None = None,
) -> None:
    """Serve indexes or sharded collections from this machine until interrupted.

    Parameters
    ----------
    path : path or sequence of paths
    host : str
        The loopback address unless told otherwise.
    port : int
        0 takes a free one.
    memory, threads, io, plan
        As in ``velo.open``.
    limits : RouterLimits, optional
    gateway_limits : GatewayLimits, optional
    on_ready : callable, optional
        Called with the URL once searches are answered; default: print it.
    processes : bool
        Whether each shard gets a process of its own, started again when it dies; default: all in this one.
    ready_shards : int, optional
        As in ``create_app``.
    drain_s : float
        After SIGTERM requests are still taken for so long while ``/readyz`` sends new ones elsewhere.
    workers : int
        Gateways on this port, each a process of its own; with more than one, shards have processes, too.
        Limits are those of each gateway. Metrics are those of all together.
    replicas : int
        Processes of each shard; more than one implies `processes`. Each takes as much memory.
    slow_s : float, optional
        As in ``create_app``.
    log_json : bool
        Whether the log on stderr is lines of JSON.
    writable : bool
        Whether rows can be written. This server is then the only one that may write to these indexes.
    durability : {"sync", "interval", "process"}
        As in ``velo.open``.
    api_keys : path, optional
        A file of lines ``read KEY`` and ``admin KEY``. With it each request needs a key, to write one of an
        admin. It is read again when it changes.
    cors_origins : sequence of str
        Origins whose web pages may ask, ``"*"`` for any.
    ssl_certfile, ssl_keyfile : path, optional
        Certificate and key in PEM: serve HTTPS.
    ssl_keyfile_password : str, optional
    ssl_ca_certs : path, optional
        Clients must show a certificate that one of these vouches for.
    aliases : path, optional
        A file of lines ``ALIAS COLLECTION``: other names of collections. It is read again when it changes.
        SIGHUP reads aliases, keys and certificate at once.

    Raises
    ------
    PortInUseError
        Before anything is opened.
    VeloError
        The index cannot be opened.
    """
    _check_workers(workers)
    _check_durability(durability)
    access = access_of(
        api_keys, cors_origins, ssl_certfile, ssl_keyfile, ssl_keyfile_password, ssl_ca_certs, aliases
    )
    options: dict[str, Any] = {
        "memory": memory,
        "threads": threads,
        "io": io,
        "plan": plan,
        "writable": writable,
        "durability": durability,
    }
    common: dict[str, Any] = {
        "gateway_limits": gateway_limits,
        "on_ready": on_ready,
        "ready_shards": ready_shards,
        "drain_s": drain_s,
        "slow_s": slow_s,
        "log_json": log_json,
        "access": access,
    }
    with bind(host, port) as listener:
        if workers > 1:
            with open_processes(path, replicas=replicas, **options) as shards:
                _run_workers(shards, listener, workers, limits=limits, **common)
        elif processes or replicas > 1:
            opened = open_processes(path, replicas=replicas, **options)
            run(backend_of(opened, limits=limits), listener, **common)
        else:
            run(open_local_backend(path, limits=limits, **options), listener, **common)


def _check_workers(workers: int) -> None:
    if workers < 1:
        raise InvalidArgumentError(f"there is at least one worker, not {workers}", argument="workers")


def _check_durability(durability: str) -> None:
    """Here, for a shard that cannot be opened is served as one that is down."""
    if durability not in DURABILITIES:
        raise InvalidArgumentError(
            f"durability must be one of {', '.join(map(repr, DURABILITIES))}, not {durability!r}",
            argument="durability",
        )


def _run_workers(
    directory: Any,
    listener: socket.socket,
    count: int,
    *,
    on_ready: Callable[[str], None] | None,
    access: Access,
    **options: Any,
) -> None:
    from velo_serving.hosting.workers import run_workers

    say, url = on_ready or say_url, url_of(listener, access)
    run_workers(directory, listener, count, on_ready=lambda: say(url), access=access, **options)


def serve_ray(
    path: str | Path,
    *,
    host: str = "127.0.0.1",
    port: int = 8000,
    address: str | None = None,
    name: str | None = None,
    on_progress: Callable[[str], None] | None = None,
    limits: RouterLimits | None = None,
    gateway_limits: GatewayLimits | None = None,
    on_ready: Callable[[str], None] | None = None,
    ready_shards: int | None = None,
    drain_s: float = 0.0,
    workers: int = 1,
    slow_s: float | None = None,
    log_json: bool = False,
    api_keys: str | Path | None = None,
    cors_origins: Sequence[str] = (),
    ssl_certfile: str | Path | None = None,
    ssl_keyfile: str | Path | None = None,
    ssl_keyfile_password: str | None = None,
    ssl_ca_certs: str | Path | None = None,
    aliases: str | Path | None = None,
    **shards: Any,
) -> None:
    """Start a Ray actor for each shard, serve them until interrupted, stop them.

    They end with an interrupt of this process, not with its death: where it is killed, other gateways go on
    answering, and ``stop_ray`` ends the actors. Only a Ray of this process's own ends with it in any case.

    Parameters
    ----------
    path : path
        A sharded build or a single index; every node must see its shards under this path.
    address : str, optional
        Of a running Ray cluster, "auto" to find one; default: a Ray of this machine's own.
    name : str, optional
        Name of the collection.
    on_progress : callable, optional
        Called with a line of text as Ray and the shards start; default: print it on stderr.
    host, port, limits, gateway_limits, on_ready, ready_shards, drain_s, workers, slow_s, log_json
        As in ``serve_local``.
    api_keys, cors_origins, ssl_certfile, ssl_keyfile, ssl_keyfile_password, ssl_ca_certs, aliases
        As in ``serve_local``.
    **shards
        ``pin``, ``ports``, ``tls``, ``replicas``, ``memory``, ``threads``, ``io``, ``plan``, ``writable``,
        ``durability``, as in ``Cluster.start``.
    """
    _check_workers(workers)
    _check_durability(shards.get("durability", "sync"))
    access = access_of(
        api_keys, cors_origins, ssl_certfile, ssl_keyfile, ssl_keyfile_password, ssl_ca_certs, aliases
    )
    from velo_serving.on_ray.actors import ray_session
    from velo_serving.on_ray.cluster import Cluster

    tell = on_progress or _tell
    with bind(host, port) as listener:
        tell("starting Ray; some seconds" if address is None else f"connecting to Ray at {address}")
        with ray_session(address) as own:
            tell("starting an actor for each shard")
            with Cluster.start(path, name=name, detached=not own, progress=tell, **shards) as cluster:
                _serve_cluster(
                    cluster,
                    listener,
                    workers,
                    limits=limits,
                    gateway_limits=gateway_limits,
                    on_ready=on_ready,
                    ready_shards=ready_shards,
                    drain_s=drain_s,
                    slow_s=slow_s,
                    log_json=log_json,
                    access=access,
                )


def start_ray(
    path: str | Path,
    *,
    address: str = "auto",
    name: str | None = None,
    on_progress: Callable[[str], None] | None = None,
    **shards: Any,
) -> str:
    """Start a Ray actor for each shard and leave them running, for ``serve_connected`` on any machine.

    Parameters
    ----------
    path, name, on_progress, **shards
        As in ``serve_ray``.
    address : str
        Of a running Ray cluster; "auto" finds one. No Ray is started: it would end with this process.

    Returns
    -------
    str
        The name of the collection.

    Raises
    ------
    PlacementError
        No Ray runs there, or no node has what a shard is pinned to.
    ClusterExistsError
        Actors of that name run already.
    """
    _check_durability(shards.get("durability", "sync"))
    from velo_serving.on_ray.actors import ray_session
    from velo_serving.on_ray.cluster import Cluster

    tell = on_progress or _tell
    tell(f"connecting to Ray at {address}")
    with ray_session(address):
        tell("starting an actor for each shard")
        return Cluster.start(path, name=name, detached=True, progress=tell, **shards).collection.name


def serve_connected(
    name: str,
    *,
    host: str = "127.0.0.1",
    port: int = 8000,
    address: str = "auto",
    limits: RouterLimits | None = None,
    gateway_limits: GatewayLimits | None = None,
    on_ready: Callable[[str], None] | None = None,
    ready_shards: int | None = None,
    drain_s: float = 0.0,
    workers: int = 1,
    slow_s: float | None = None,
    log_json: bool = False,
    api_keys: str | Path | None = None,
    cors_origins: Sequence[str] = (),
    ssl_certfile: str | Path | None = None,
    ssl_keyfile: str | Path | None = None,
    ssl_keyfile_password: str | None = None,
    ssl_ca_certs: str | Path | None = None,
    aliases: str | Path | None = None,
) -> None:
    """Serve actors that run already until interrupted, and leave them running.

    Parameters
    ----------
    name : str
        Of the collection.
    address : str
        Of the Ray that they run on; "auto" finds one. No Ray is started.
    host, port, limits, gateway_limits, on_ready, ready_shards, drain_s, workers, slow_s, log_json
        As in ``serve_local``.
    api_keys, cors_origins, ssl_certfile, ssl_keyfile, ssl_keyfile_password, ssl_ca_certs, aliases
        As in ``serve_local``.

    Raises
    ------
    UnknownCollectionError
        No actors of that name run.
    PlacementError
        No Ray runs there.
    """
    _check_workers(workers)
    access = access_of(
        api_keys, cors_origins, ssl_certfile, ssl_keyfile, ssl_keyfile_password, ssl_ca_certs, aliases
    )
    from velo_serving.on_ray.actors import ray_session
    from velo_serving.on_ray.cluster import Cluster

    with bind(host, port) as listener, ray_session(address), Cluster.connect(name) as cluster:
        _serve_cluster(
            cluster,
            listener,
            workers,
            limits=limits,
            gateway_limits=gateway_limits,
            on_ready=on_ready,
            ready_shards=ready_shards,
            drain_s=drain_s,
            slow_s=slow_s,
            log_json=log_json,
            access=access,
        )


def stop_ray(name: str, *, address: str = "auto") -> int:
    """End the actors of a collection, whoever started them, and wait until they are gone.

    Parameters
    ----------
    name : str
        Of the collection; all that was published under it ends.
    address : str
        Of the Ray that they run on; "auto" finds one. No Ray is started.

    Returns
    -------
    int
        How many actors there were.

    Raises
    ------
    UnknownCollectionError
        No actors of that name run.
    PlacementError
        No Ray runs there.
    """
    from velo_serving.on_ray.actors import ray_session
    from velo_serving.on_ray.cluster import Cluster

    with ray_session(address):
        return Cluster.end(name)


def _serve_cluster(
    cluster: Cluster, listener: socket.socket, workers: int, *, limits: RouterLimits | None, **common: Any
) -> None:
    if workers > 1:
        _run_workers(cluster, listener, workers, limits=limits, **common)
    else:
        run(cluster.backend(limits=limits), listener, **common)


def _tell(line: str) -> None:
    print(f"velo: {line}", file=sys.stderr, flush=True)
