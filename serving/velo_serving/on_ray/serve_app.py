"""The gateway as an app of Ray Serve, which only this module imports.

Serve starts gateways, balances requests and replaces gateways that die. Shards stay actors of velo's own.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from velo.errors import InvalidArgumentError, MissingDependencyError

try:
    from ray import serve
except ImportError as error:
    raise MissingDependencyError("Ray Serve is not installed; pip install 'veloann[ray-serve]'") from error

from velo_serving.gateway import create_app
from velo_serving.gateway.access import Access
from velo_serving.on_ray.cluster import Cluster, start
from velo_serving.protocol.errors import ClusterExistsError
from velo_serving.protocol.limits import GatewayLimits
from velo_serving.protocol.options import ServeOptions

#: What the app is given beside options.
_OWN: Final[list[Any]] = [
    *(("name", str), ("path", str | None, None), ("gateways", int, 1), ("cpus", float, 1.0)),
    ("start_timeout_s", float, 600.0),  # nodes may have to come first
]

#: How shards run, and what a gateway of Serve's can have; types where a configuration has others.
_PLAIN: Final = {"pin": str | dict[str, str] | None, "api_keys": str | None, "cors_origins": tuple[str, ...]}
_NAMES: Final = {
    *("replicas", "memory", "threads", "io", "plan", "writable", "durability", "ports", "tls"),
    *("ready_shards", "slow_s", *_PLAIN),
}
_FIELDS: Final = [one for one in ServeOptions.all_fields() if one.name in _NAMES]
_OPTIONS: Final[list[Any]] = [(one.name, _PLAIN.get(one.name, one.type), one.default) for one in _FIELDS]
_Args: Any = msgspec.defstruct("_Args", [*_OWN, *_OPTIONS], forbid_unknown_fields=True)


def serve_app(args: Mapping[str, Any]) -> serve.Application:
    """Make the app: gateways over the actors of a collection, which are started where none run.

    Parameters
    ----------
    args : mapping
        `name` of a collection whose actors run, or shall; `path` to start them from where none run: they go
        on when the app ends; `start_timeout_s` for that; `gateways` and `cpus`: processes, and what Ray
        reserves each. Of :class:`ServeOptions` how shards run (`replicas`, `pin`, `memory`, `threads`, `io`,
        `plan`, `writable`, `durability`, `ports`, `tls`), and `ready_shards`, `slow_s`, `cors_origins`,
        `api_keys` (a file that every node of a gateway sees).

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
    given, options = _checked(args)
    access = Access(api_keys=given.api_keys, cors_origins=given.cors_origins)
    access.check()
    if given.path is not None:
        with contextlib.suppress(ClusterExistsError):
            start(given.path, options, name=given.name, detached=True, start_timeout_s=given.start_timeout_s)

    def gateway() -> Any:
        backend = Cluster.connect(given.name).backend()
        return create_app(backend, ready_shards=options.ready_shards, slow_s=options.slow_s, access=access)

    deployment = serve.deployment(
        name="gateway",
        num_replicas=given.gateways,
        ray_actor_options={"num_cpus": given.cpus},
        # The gateway refuses what is too much and says when to come back: Serve must not queue before it.
        max_ongoing_requests=GatewayLimits().requests_max * 2,
        graceful_shutdown_timeout_s=10.0,
    )(serve.ingress(gateway)())
    app: serve.Application = deployment.bind()
    return app


def _checked(args: Mapping[str, Any]) -> tuple[Any, ServeOptions]:
    try:
        given = msgspec.convert(dict(args), _Args)
    except msgspec.ValidationError as error:
        raise InvalidArgumentError(f"args of the app: {error}", argument="args") from None
    if given.gateways < 1:
        raise InvalidArgumentError(f"at least one gateway, not {given.gateways}", argument="gateways")
    return given, ServeOptions(**{one.name: getattr(given, one.name) for one in _FIELDS})
