"""``velo serve`` and ``velo stop``: the way to :mod:`velo_serving`, which is loaded only here."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from velo.cli.arguments import AsJson, IoDevice, MemoryText, PlanChoice, Threads
from velo.errors import InvalidArgumentError, MissingDependencyError
from velo.options import in_range

__all__ = ["serve", "stop"]

RayAddress = Annotated[
    str | None,
    typer.Option(help='Of a running Ray cluster, "auto" to find one; --ray without it starts one.'),
]


def serve(
    paths: Annotated[
        list[Path] | None, typer.Argument(help="Indexes or collections; each is served under its name.")
    ] = None,
    host: Annotated[str, typer.Option(help="Address to listen at.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port; 0 takes a free one.")] = 8000,
    memory: MemoryText = None,
    threads: Threads = None,
    io: IoDevice = "auto",
    plan: PlanChoice = "auto",
    ray: Annotated[
        bool, typer.Option("--ray", help="Start the shards of a collection as Ray actors.")
    ] = False,
    ray_address: RayAddress = None,
    name: Annotated[
        str | None, typer.Option(help="What --ray serves the collection as; its folder's name without it.")
    ] = None,
    detached: Annotated[
        bool, typer.Option("--detached", help="Start actors on a Ray that runs, and leave them running.")
    ] = False,
    connect: Annotated[
        str | None, typer.Option(metavar="NAME", help="Serve actors that run already under this name.")
    ] = None,
    pin: Annotated[
        str | None, typer.Option(help='Where shards run: "resource:NAME" or "label:KEY=VALUE".')
    ] = None,
    shard_ports: Annotated[
        str | None,
        typer.Option(
            help="Where shards on Ray listen for gateways; any free ports without it.", metavar="FIRST-LAST"
        ),
    ] = None,
    shard_tls: Annotated[
        Path | None,
        typer.Option(help="Folder with cert.pem, key.pem, ca.pem: encrypt what goes to shards on Ray."),
    ] = None,
    processes: Annotated[
        bool, typer.Option("--processes", help="Give each shard a process of its own, without Ray.")
    ] = False,
    ready_shards: Annotated[
        int | None, typer.Option(min=1, help="Shards that must be up for /readyz; one if not said.")
    ] = None,
    drain_s: Annotated[
        float, typer.Option(min=0, help="Seconds to go on answering after SIGTERM, while /readyz says no.")
    ] = 0.0,
    workers: Annotated[
        int, typer.Option(min=1, help="Gateway processes on this port; more than one implies --processes.")
    ] = 1,
    replicas: Annotated[
        int, typer.Option(min=1, help="Processes or actors of each shard; another one answers when one dies.")
    ] = 1,
    slow_ms: Annotated[
        float | None, typer.Option(min=0, help="Write requests to the log that take as long.")
    ] = None,
    log_json: Annotated[bool, typer.Option("--log-json", help="Write the log as lines of JSON.")] = False,
    writable: Annotated[
        bool, typer.Option("--writable", help="Let clients write rows; nobody else may write meanwhile.")
    ] = False,
    durability: Annotated[
        str, typer.Option(help='When a write is on the device: "sync", "interval" or "process".')
    ] = "sync",
    api_keys: Annotated[
        Path | None, typer.Option(help='File of lines "read KEY" and "admin KEY"; ask for one of them.')
    ] = None,
    cors_origin: Annotated[
        list[str] | None, typer.Option(help='Let web pages of this origin ask; "*": of any.')
    ] = None,
    ssl_certfile: Annotated[Path | None, typer.Option(help="Certificate in PEM: serve HTTPS.")] = None,
    ssl_keyfile: Annotated[Path | None, typer.Option(help="Its key, if it is in another file.")] = None,
    ssl_keyfile_password: Annotated[
        str | None, typer.Option(envvar="VELO_SSL_KEYFILE_PASSWORD", help="Of the key.")
    ] = None,
    ssl_ca_certs: Annotated[
        Path | None, typer.Option(help="Ask clients for a certificate that one of these vouches for.")
    ] = None,
    aliases: Annotated[Path | None, typer.Option(help='File of lines "ALIAS COLLECTION".')] = None,
    as_json: AsJson = False,
) -> None:
    """Serve indexes or sharded collections over HTTP until interrupted."""
    if threads is not None:  # here, for a shard that cannot be opened is served as one that is down
        in_range(threads, "threads")
    gateway: dict[str, Any] = {
        "host": host,
        "port": port,
        "ready_shards": ready_shards,
        "drain_s": drain_s,
        "workers": workers,
        "slow_s": None if slow_ms is None else slow_ms / 1000,
        "log_json": log_json,
        "api_keys": api_keys,
        "cors_origins": cors_origin or (),
        "ssl_certfile": ssl_certfile,
        "ssl_keyfile": ssl_keyfile,
        "ssl_keyfile_password": ssl_keyfile_password,
        "ssl_ca_certs": ssl_ca_certs,
        "aliases": aliases,
    }
    shards: dict[str, Any] = {
        "memory": memory,
        "threads": threads,
        "io": io,
        "plan": plan,
        "replicas": replicas,
        "writable": writable,
        "durability": durability,
    }
    tls = None if shard_tls is None else str(shard_tls.absolute())
    on_ray: dict[str, Any] = {"name": name, "pin": pin, "ports": shard_ports, "tls": tls}
    if as_json and not detached:
        gateway["on_ready"] = lambda url: _print({"url": url})
    if connect is not None:
        given = {"paths": paths, "processes": processes, "detached": detached, **on_ray}
        _refuse(given, "with --connect the shards run already", defaults={})
        _refuse(shards, "with --connect the shards run already", defaults=SHARD_DEFAULTS)
        _serving(ray=True).serve_connected(connect, address=ray_address or "auto", **gateway)
        return
    if not paths:
        raise typer.BadParameter("give indexes or collections, or --connect NAME", param_hint="PATHS")
    if not (ray or detached):
        _refuse({"ray_address": ray_address, **on_ray}, "this goes with --ray", defaults={})
        _serving(ray=False).serve_local(paths, processes=processes, **shards, **gateway)
        return
    if len(paths) != 1:
        raise InvalidArgumentError("--ray serves one collection", argument="paths")
    if processes:
        raise InvalidArgumentError("give one of --ray and --processes", argument="processes")
    if not detached:
        _serving(ray=True).serve_ray(paths[0], address=ray_address, **on_ray, **shards, **gateway)
        return
    _refuse(gateway, "with --detached no gateway is started", defaults=GATEWAY_DEFAULTS)
    started = _serving(ray=True).start_ray(paths[0], address=ray_address or "auto", **on_ray, **shards)
    if as_json:
        _print({"name": started})
    else:
        typer.echo(
            f"{started} runs: `velo serve --connect {started}` serves it, `velo stop {started}` ends it"
        )


#: What ``serve``'s options are that nobody gave: of those that say how shards run, and of a gateway's.
SHARD_DEFAULTS = {"io": "auto", "plan": "auto", "replicas": 1, "durability": "sync"}
GATEWAY_DEFAULTS = {"host": "127.0.0.1", "port": 8000, "workers": 1}


def stop(
    name: Annotated[str, typer.Argument(help="What the collection is served as.", metavar="NAME")],
    ray_address: RayAddress = None,
    as_json: AsJson = False,
) -> None:
    """End the actors of a collection on Ray, whoever started them."""
    count = _serving(ray=True).stop_ray(name, address=ray_address or "auto")
    if as_json:
        _print({"name": name, "actors": count})
    else:
        typer.echo(f"{name} ended: {count} actors")


def _refuse(given: dict[str, Any], why: str, *, defaults: dict[str, Any]) -> None:
    """Options that mean nothing here, named by the first."""
    for name, value in given.items():
        if value != defaults[name] if name in defaults else value:
            raise InvalidArgumentError(f"{name.replace('_', '-')}: {why}", argument=name)


def _serving(*, ray: bool) -> Any:
    """The serving package, by name: the core one neither needs nor knows it."""
    try:
        serving = importlib.import_module("velo_serving.hosting.serve")
        if ray:
            importlib.import_module("velo_serving.on_ray.actors")
    except ImportError as error:
        raise MissingDependencyError(
            f"serving needs packages that are not installed ({error}): pip install 'veloann[serving]'"
        ) from error
    return serving


def _print(document: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(document) + "\n")
    sys.stdout.flush()
