"""The options of serving: one set for Python, for Ray and for the command line."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import wraps
from pathlib import Path
from typing import Annotated, Any, Concatenate, Final, Literal, NamedTuple, ParamSpec, TypeVar, get_type_hints

from velo.errors import InvalidArgumentError
from velo.options import in_range
from velo_serving.protocol.limits import GatewayLimits, RouterLimits

Group = Literal["shards", "ray", "address", "local", "gateway"]

DURABILITIES: Final = ("sync", "interval", "process")

#: Why an option may mean nothing where it was given.
_WHY: Final[Mapping[Group, str]] = {
    "shards": "the shards run already",
    "ray": "this goes with shards on Ray that are started here",
    "address": "this goes with shards on Ray",
    "local": "this goes with shards of this machine",
    "gateway": "no gateway is started",
}

W = TypeVar("W")
R = TypeVar("R")
P = ParamSpec("P")


@dataclass(frozen=True)
class Option:
    """The description of an option, beside its type and default.

    ``group`` is the part it configures: shards anywhere, on Ray or on this machine, or a gateway. Without
    ``help`` the command line has no such option. ``flag`` is its name there, if different, and ``unit`` the
    factor of its values. Values below ``least`` are refused.
    """

    group: Group
    help: str = ""
    flag: str = ""
    metavar: str | None = None
    envvar: str | None = None
    least: float | None = None
    unit: float = 1


class Field(NamedTuple):
    """An option with all that is known of it."""

    name: str
    type: Any
    default: Any
    said: Option


@dataclass(frozen=True, kw_only=True)
class ServeOptions:
    """The options of serving. Functions take these as keywords, each those that apply there.

    Attributes
    ----------
    memory, threads, io, plan, durability
        As in ``velo.open``. The shards of a collection share ``memory``, those of a machine its cores.
    writable : bool
        Whether rows can be written. Other processes may write to these indexes, too.
    replicas : int
        Processes, or actors, of each shard. If one dies or hangs, another answers. Each takes as much memory.
    address : str, optional
        Of a running Ray cluster, "auto" to find one; ``serve_ray`` starts a Ray of its own without it.
    name : str, optional
        Of the collection. On Ray its actors are ``velo-NAME-1-shard-0-replica-0`` and so on, in namespace
        ``velo``; the first number counts publications.
    pin : str or mapping, optional
        Nodes of shards: ``"resource:NAME"`` or ``"label:KEY=VALUE"``, in which ``{shard}`` is the name of the
        shard and ``{replica}`` the number of the replica; or one such text for each shard. It overrides
        ``collection.json``. Without a pin Ray chooses any node, which must see the folders.
    ports : str, optional
        Ports of shards on Ray for gateways on other machines, such as ``"7100-7199"``: each takes the first
        free one of its node. Default: any free port.
    tls : str, optional
        A folder, on each node and each machine of a gateway, with ``cert.pem``, ``key.pem`` and ``ca.pem``:
        connections between machines are encrypted, and both ends need a certificate of the authority.
    num_cpus : float
        Processors that Ray reserves for a shard; none by default, since the disk decides where a shard runs.
    detached : bool
        Whether actors outlive the process that starts them.
    start_timeout_s : float
        Time for all shards on Ray to open.
    on_progress : callable, optional
        Called with a line of text as Ray and its shards start.
    processes : bool
        Whether each shard gets a process of its own on this machine, restarted when it dies.
    root : path, optional
        A folder whose collections are served, and in which clients may create and drop others. It implies
        processes, and needs `writable`.
    host : str
        Default: the loopback address.
    port : int
        0 takes a free one.
    uds : path, optional
        Listen at this Unix socket instead of host and port.
    root_path : str
        The prefix that a proxy removes from paths, such as ``"/velo"``.
    keep_alive_s : float
        Seconds after which an idle connection is closed; longer than a proxy keeps it, or requests are lost.
    trusted_hosts : sequence of str
        Values of the header ``Host`` that are served, such as ``"*.example.com"``; default: all. Health
        checks need none.
    workers : int
        Gateway processes on this port; several imply processes for shards. Each has its own limits; metrics
        are those of all.
    require_all : bool
        Whether a start fails if a shard does not open. By default a server of processes, or of shards on Ray,
        starts with those that open, and asks for the others until they do.
    ready_shards : int, optional
        Shards of each collection that must be up for ``/readyz``; default: one.
    drain_s : float
        Seconds after SIGTERM in which requests are answered while ``/readyz`` reports failure. Afterwards
        running ones get as much time again, but at least ten seconds, before they fail with a 503.
    slow_s : float, optional
        Requests that take at least this long are logged.
    log_json : bool
        Whether the log on stderr is lines of JSON.
    api_keys : path, optional
        A file of lines ``read KEY`` and ``admin KEY``. Then each request needs a key, and each write that of
        an admin. The file is read again when it changes.
    cors_origins : sequence of str
        Origins whose web pages may send requests, ``"*"`` for any.
    publish_from : sequence of str
        Folders and URLs (with their options, such as ``endpoint_override``) below which clients with an admin
        key may publish builds. Default: any folder, and URLs of stores that name no host.
    ssl_certfile, ssl_keyfile : path, optional
        Certificate and key in PEM: serve HTTPS.
    ssl_keyfile_password : str, optional
    ssl_ca_certs : path, optional
        Clients need a certificate of one of these authorities.
    aliases : path, optional
        A file of lines ``ALIAS COLLECTION``. It is read again when it changes, or on SIGHUP (as
        keys and certificate).
    embed : str, optional
        ``"MODULE:FUNCTION"``: makes vectors of the texts of searches in the dashboard at ``/ui``. It gets a
        list of texts and returns an array with a row for each. The module may be in the current folder.
    limits : RouterLimits, optional
    gateway_limits : GatewayLimits, optional
    on_ready : callable, optional
        Called with the URL once searches are answered; default: print it.
    """

    memory: Annotated[
        int | float | str | None,
        Option("shards", 'Budget: "15%" of the float32 vectors, "2GiB", or bytes.', metavar="BUDGET"),
    ] = None
    threads: Annotated[int | None, Option("shards", "Worker threads; all cores without it.")] = None
    io: Annotated[str, Option("shards", "auto, uring or threads.")] = "auto"
    plan: Annotated[str, Option("shards", "auto, links_in_memory, links_on_disk or walk.")] = "auto"
    replicas: Annotated[int, Option("shards", "Processes or actors of each shard.", least=1)] = 1
    writable: Annotated[bool, Option("shards", "Let clients write rows.")] = False
    durability: Annotated[
        str, Option("shards", 'When a write is on the device: "sync", "interval" or "process".')
    ] = "sync"
    address: Annotated[
        str | None,
        Option(
            "address",
            'Of a running Ray cluster, "auto" to find one; --ray without it starts one.',
            flag="ray-address",
        ),
    ] = None
    name: Annotated[str | None, Option("ray", "Name of the collection; default: its folder's.")] = None
    pin: Annotated[str | Mapping[str, str] | None, Option("ray", "resource:NAME or label:KEY=VALUE.")] = None
    ports: Annotated[
        str | None,
        Option(
            "ray",
            "Where shards on Ray listen for gateways; any free ports without it.",
            flag="shard-ports",
            metavar="FIRST-LAST",
        ),
    ] = None
    tls: Annotated[
        str | None,
        Option(
            "ray",
            "Folder with cert.pem, key.pem, ca.pem: encrypt what goes to shards on Ray.",
            flag="shard-tls",
        ),
    ] = None
    num_cpus: Annotated[float, Option("ray", least=0)] = 0
    detached: Annotated[bool, Option("ray")] = False
    start_timeout_s: Annotated[float, Option("ray", least=0)] = 120.0
    on_progress: Annotated[Callable[[str], None] | None, Option("ray")] = None
    processes: Annotated[bool, Option("local", "Give each shard a process of its own, without Ray.")] = False
    root: Annotated[str | Path | None, Option("local", "Folder of clients' collections.")] = None
    host: Annotated[str, Option("gateway", "Address to listen at.")] = "127.0.0.1"
    port: Annotated[int, Option("gateway", "Port; 0 takes a free one.")] = 8000
    uds: Annotated[str | Path | None, Option("gateway", "Unix socket instead of host and port.")] = None
    root_path: Annotated[str, Option("gateway", "Prefix of paths that a proxy removes.")] = ""
    keep_alive_s: Annotated[float, Option("gateway", "Seconds of an idle connection.", least=0)] = 75.0
    trusted_hosts: Annotated[
        Sequence[str], Option("gateway", "Serve only this Host; repeatable.", flag="trusted-host")
    ] = ()
    workers: Annotated[int, Option("gateway", "Gateway processes; several imply --processes.", least=1)] = 1
    require_all: Annotated[bool, Option("gateway", "Fail at the start if a shard is missing.")] = False
    ready_shards: Annotated[int | None, Option("gateway", "Up for /readyz; default one.", least=1)] = None
    drain_s: Annotated[float, Option("gateway", "Seconds of service after SIGTERM.", least=0)] = 0.0
    slow_s: Annotated[
        float | None,
        Option("gateway", "Write requests to the log that take as long.", flag="slow-ms", least=0, unit=1000),
    ] = None
    log_json: Annotated[bool, Option("gateway", "Write the log as lines of JSON.")] = False
    api_keys: Annotated[str | Path | None, Option("gateway", "File of read KEY and admin KEY lines.")] = None
    cors_origins: Annotated[
        Sequence[str], Option("gateway", 'Let web pages of this origin ask; "*": of any.', flag="cors-origin")
    ] = ()
    publish_from: Annotated[
        Sequence[str], Option("gateway", "Publish only builds below this folder or URL; repeatable.")
    ] = ()
    ssl_certfile: Annotated[str | Path | None, Option("gateway", "Certificate in PEM: serve HTTPS.")] = None
    ssl_keyfile: Annotated[str | Path | None, Option("gateway", "Its key, if it is in another file.")] = None
    ssl_keyfile_password: Annotated[
        str | None, Option("gateway", "Of the key.", envvar="VELO_SSL_KEYFILE_PASSWORD")
    ] = field(default=None, repr=False)
    ssl_ca_certs: Annotated[str | Path | None, Option("gateway", "Authorities of clients.")] = None
    aliases: Annotated[str | Path | None, Option("gateway", 'File of lines "ALIAS COLLECTION".')] = None
    embed: Annotated[
        str | None,
        Option("gateway", "Makes vectors of texts for the dashboard at /ui.", metavar="MODULE:FUNCTION"),
    ] = None
    limits: Annotated[RouterLimits | None, Option("gateway")] = None
    gateway_limits: Annotated[GatewayLimits | None, Option("gateway")] = None
    on_ready: Annotated[Callable[[str], None] | None, Option("gateway")] = None

    def __post_init__(self) -> None:
        for one in _FIELDS.values():
            value, least = getattr(self, one.name), one.said.least
            if least is not None and value is not None and not value >= least:
                raise InvalidArgumentError(f"{one.name} is below {least:g}: {value!r}", argument=one.name)
        # Here, for a shard that cannot be opened is served as one that is down.
        if self.threads is not None:
            in_range(self.threads, "threads")
        if self.root is not None and not self.writable:
            raise InvalidArgumentError("root: clients need `writable` to use collections", argument="root")
        if self.durability not in DURABILITIES:
            raise InvalidArgumentError(
                f"durability must be one of {', '.join(map(repr, DURABILITIES))}, not {self.durability!r}",
                argument="durability",
            )

    @property
    def opening(self) -> dict[str, Any]:
        """The options with which each shard is opened."""
        return {
            name: getattr(self, name)
            for name in ("memory", "threads", "io", "plan", "writable", "durability")
        }

    @property
    def of_gateway(self) -> dict[str, Any]:
        """The options of each of several gateways, as plain data; limits travel beside them."""
        given = {one.name: getattr(self, one.name) for one in self.all_fields("gateway") if one.said.help}
        plain = {name: str(value) if isinstance(value, Path) else value for name, value in given.items()}
        lists = {name: tuple(plain[name]) for name in ("cors_origins", "trusted_hosts", "publish_from")}
        return plain | {"workers": 1} | lists

    @classmethod
    def all_fields(cls, *groups: Group) -> Iterator[Field]:
        """List the options of some groups, or all."""
        return (one for one in _FIELDS.values() if not groups or one.said.group in groups)

    def refuse_others(self, groups: Sequence[Group]) -> None:
        """Refuse given options of other groups."""
        for one in _FIELDS.values():
            if one.said.group not in groups and getattr(self, one.name) != one.default:
                why = _WHY[one.said.group]
                raise InvalidArgumentError(
                    f"{one.said.flag or one.name.replace('_', '-')}: {why}", argument=one.name
                )


def _fields() -> dict[str, Field]:
    hints = get_type_hints(ServeOptions, include_extras=True)
    return {
        one.name: Field(one.name, hints[one.name].__origin__, one.default, hints[one.name].__metadata__[0])
        for one in fields(ServeOptions)
    }


_FIELDS: Final = _fields()


def takes_options(
    kind: Callable[P, ServeOptions], *groups: Group
) -> Callable[[Callable[[W, ServeOptions], R]], Callable[Concatenate[W, P], R]]:
    """Let a function that takes ``options`` take those of some groups as keywords; others are refused."""

    def decorate(function: Callable[[W, ServeOptions], R]) -> Callable[Concatenate[W, P], R]:
        signature = inspect.signature(function)
        own = [one for one in signature.parameters.values() if one.name != "options"]

        @wraps(function)
        def called(*arguments: Any, **keywords: Any) -> R:
            for name in keywords:
                if name not in _FIELDS and name not in signature.parameters:
                    raise TypeError(f"{function.__name__}() got an unexpected keyword argument {name!r}")
            mine = {one.name: keywords.pop(one.name) for one in own if one.name in keywords}
            options = ServeOptions(**keywords)
            options.refuse_others(groups)
            call: Callable[..., R] = function
            return call(*arguments, **mine, options=options)

        shown = [
            inspect.Parameter(one.name, inspect.Parameter.KEYWORD_ONLY, default=one.default)
            for one in ServeOptions.all_fields(*groups)
        ]
        called.__signature__ = signature.replace(parameters=[*own, *shown])  # type: ignore[attr-defined]
        names = ", ".join(f"`{one.name}`" for one in shown)
        called.__doc__ = (function.__doc__ or "").replace(
            "As keywords, those", f"As keywords ({names}), those"
        )
        return called

    return decorate


#: Classes of limits by the option that holds them.
_LIMITS: dict[str, Any] = {"limits": RouterLimits, "gateway_limits": GatewayLimits}


def limits_of(texts: Sequence[str]) -> dict[str, Any]:
    """The options of limits that ``NAME=VALUE`` texts set, each value with the type of its default."""
    given: dict[str, dict[str, Any]] = {}
    for text in texts:
        name, _, value = text.partition("=")
        found = [(role, kind) for role, kind in _LIMITS.items() if hasattr(kind(), name)]
        if not found:
            raise InvalidArgumentError(f"limit: {name!r} is none of the limits", argument="limit")
        role, kind = found[0]
        try:
            given.setdefault(role, {})[name] = type(getattr(kind(), name))(value)
        except ValueError:
            raise InvalidArgumentError(f"limit: {value!r} is no {name}", argument="limit") from None
    return {role: _LIMITS[role](**fields) for role, fields in given.items()}
