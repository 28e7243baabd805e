"""The gateway as an app of Ray Serve, which this file alone imports.

Serve starts gateways, spreads requests over them and replaces those that die. Shards are no part of it: they
stay actors of velo's own, which every gateway asks over the same connections as ever.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Any

import msgspec

from velo.errors import InvalidArgumentError, MissingDependencyError

try:
    from ray import serve
except ImportError as error:
    raise MissingDependencyError("Ray Serve is not installed; pip install 'veloann[ray-serve]'") from error

from velo_serving.gateway import GatewayLimits, create_app
from velo_serving.gateway.access import Access
from velo_serving.on_ray.cluster import Cluster
from velo_serving.words.errors import ClusterExistsError

__all__ = ["ServeArgs", "serve_app"]

#: How long requests under way have to end when Serve takes a gateway away.
END_S = 10.0


class ServeArgs(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """What the app is told, in ``args`` of Serve's configuration.

    Attributes
    ----------
    name : str
        Of a collection whose actors run, or shall.
    path : str, optional
        A sharded build or a single index. Where no actors of that name run, they are started from it, and go
        on when the app ends.
    gateways : int
        Processes of the gateway.
    cpus : float
        What Ray reserves each of them.
    replicas, pin, memory, threads, io, plan, writable, durability, ports, tls
        As in ``Cluster.start``.
    ready_shards, slow_s
        As in ``create_app``.
    api_keys, cors_origins
        As in ``serve_local``; every node of a gateway must see the file of keys.
    start_timeout_s : float
        Time for all shards to open.
    """

    name: str
    path: str | None = None
    gateways: int = 1
    cpus: float = 1.0
    replicas: int = 1
    pin: str | dict[str, str] | None = None
    memory: int | float | str | None = None
    threads: int | None = None
    io: str = "auto"
    plan: str = "auto"
    writable: bool = False
    durability: str = "sync"
    ports: str | None = None
    tls: str | None = None
    ready_shards: int | None = None
    slow_s: float | None = None
    api_keys: str | None = None
    cors_origins: tuple[str, ...] = ()
    start_timeout_s: float = 600.0


def serve_app(args: Mapping[str, Any]) -> serve.Application:
    """Make the app: gateways over the actors of a collection, which are started where none run.

    Parameters
    ----------
    args : mapping
        The fields of ``ServeArgs``.

    Returns
    -------
    ray.serve.Application
        For ``serve.run``, or ``import_path: velo_serving:serve_app``.

    Raises
    ------
    InvalidArgumentError
        A field is missing, unknown or of another type.
    ShardNotHereError, PlacementError, VeloError
        As in ``Cluster.start``.
    """
    told = _checked(args)
    if told.path is not None:
        # Unless a former deployment of this app, or whoever else, has started them.
        with contextlib.suppress(ClusterExistsError):
            Cluster.start(
                told.path,
                name=told.name,
                replicas=told.replicas,
                pin=told.pin,
                memory=told.memory,
                threads=told.threads,
                io=told.io,
                plan=told.plan,
                writable=told.writable,
                durability=told.durability,
                ports=told.ports,
                tls=told.tls,
                detached=True,
                start_timeout_s=told.start_timeout_s,
            )

    def gateway() -> Any:
        """In the process of a gateway: its app."""
        return create_app(
            Cluster.connect(told.name).backend(),
            ready_shards=told.ready_shards,
            slow_s=told.slow_s,
            access=Access(api_keys=told.api_keys, cors_origins=told.cors_origins),
        )

    deployment = serve.deployment(
        name="gateway",
        num_replicas=told.gateways,
        ray_actor_options={"num_cpus": told.cpus},
        # The gateway refuses what is too much and says when to come back: Serve must not queue before it.
        max_ongoing_requests=GatewayLimits().requests_max * 2,
        graceful_shutdown_timeout_s=END_S,
    )(serve.ingress(gateway)())
    app: serve.Application = deployment.bind()
    return app


def _checked(args: Mapping[str, Any]) -> ServeArgs:
    try:
        told = msgspec.convert(dict(args), ServeArgs)
    except msgspec.ValidationError as error:
        raise InvalidArgumentError(f"args of the app: {error}", argument="args") from None
    if told.gateways < 1:
        raise InvalidArgumentError(f"there is at least one gateway, not {told.gateways}", argument="gateways")
    Access(api_keys=told.api_keys, cors_origins=told.cors_origins).check()
    return told
