"""``velo serve`` and ``velo stop``; :mod:`velo_serving` is imported only here."""

from __future__ import annotations

import importlib
import inspect
import json
import sys
from pathlib import Path
from typing import Annotated, Any, get_args

import typer

from velo.cli.arguments import AsJson
from velo.errors import InvalidArgumentError, MissingDependencyError
from velo_serving.protocol.options import Field, ServeOptions, limits_of

#: The options of ``velo serve``: those that have a word for ``--help``.
OPTIONS = [one for one in ServeOptions.all_fields() if one.said.help]

#: Types of those that may be more in Python than on the command line.
KINDS: dict[str, Any] = {
    "memory": str | None,
    "pin": str | None,
    "cors_origins": list[str] | None,
    "trusted_hosts": list[str] | None,
    "publish_from": list[str] | None,
}


def serve(
    paths: Annotated[
        list[Path] | None, typer.Argument(help="Indexes or collections; each is served under its name.")
    ] = None,
    ray: Annotated[
        bool, typer.Option("--ray", help="Start the shards of a collection as Ray actors.")
    ] = False,
    detached: Annotated[
        bool, typer.Option("--detached", help="Start actors on a Ray that runs, and leave them running.")
    ] = False,
    connect: Annotated[
        str | None, typer.Option(metavar="NAME", help="Serve actors that run already under this name.")
    ] = None,
    limit: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=VALUE", help="Set a field of RouterLimits or GatewayLimits; repeatable."),
    ] = None,
    as_json: AsJson = False,
    **options: Any,
) -> None:
    """Serve indexes or sharded collections over HTTP until interrupted."""
    told = ((one, _value_of(one, options[one.name])) for one in OPTIONS)
    given = {one.name: value for one, value in told if value != one.default} | limits_of(limit or ())
    if as_json and not detached:
        given["on_ready"] = lambda url: _print({"url": url})
    if connect is not None:
        for name, value in (("paths", paths), ("detached", detached)):
            if value:
                raise InvalidArgumentError(f"{name}: the shards run already, at --connect", argument=name)
        _serving(ray=True).serve_connected(connect, **given)
        return
    if not paths and options["root"] is None:
        raise typer.BadParameter(
            "give indexes or collections, --root FOLDER, or --connect NAME", param_hint="PATHS"
        )
    if not (ray or detached):
        _serving(ray=False).serve_local(paths or [], **given)
        return
    if paths is None or len(paths) != 1:
        raise InvalidArgumentError("--ray serves one collection", argument="paths")
    if not detached:
        _serving(ray=True).serve_ray(paths[0], **given)
        return
    started = _serving(ray=True).start_ray(paths[0], **given)
    if as_json:
        _print({"name": started})
    else:
        typer.echo(
            f"{started} runs: `velo serve --connect {started}` serves it, `velo stop {started}` ends it"
        )


def _value_of(option: Field, value: Any) -> Any:
    """An option as Python takes it."""
    if value is None or value == []:
        return option.default
    return value / option.said.unit if option.said.unit != 1 else value


def _parameter(option: Field) -> inspect.Parameter:
    """An option as typer takes it."""
    said, default = option.said, option.default
    kind = KINDS.get(option.name, option.type)
    if Path in get_args(kind):
        kind = Path | None
    flag = said.flag or option.name.replace("_", "-")
    told: dict[str, Any] = {"help": said.help, "metavar": said.metavar, "envvar": said.envvar}
    if said.least is not None:
        told["min"] = said.least if float in (kind, *get_args(kind)) else int(said.least)
    if default == ():
        default = None
    return inspect.Parameter(
        option.name,
        inspect.Parameter.KEYWORD_ONLY,
        default=default,
        annotation=Annotated[kind, typer.Option(f"--{flag}", **told)],
    )


def _show_options() -> None:
    """Replace ``**options`` of ``serve`` by an argument for each option."""
    signature = inspect.signature(serve, eval_str=True)
    own = [one for one in signature.parameters.values() if one.kind is not one.VAR_KEYWORD]
    shown = [one.replace(kind=one.KEYWORD_ONLY) for one in own] + [_parameter(one) for one in OPTIONS]
    serve.__signature__ = signature.replace(parameters=shown)  # type: ignore[attr-defined]
    serve.__annotations__ = {one.name: one.annotation for one in shown} | {"return": None}


_show_options()


def stop(
    name: Annotated[str, typer.Argument(help="What the collection is served as.", metavar="NAME")],
    ray_address: Annotated[
        str | None, typer.Option(help='Of a running Ray cluster, "auto" to find one.')
    ] = None,
    as_json: AsJson = False,
) -> None:
    """End the actors of a collection on Ray, whatever process started them."""
    count = _serving(ray=True).stop_ray(name, address=ray_address or "auto")
    if as_json:
        _print({"name": name, "actors": count})
    else:
        typer.echo(f"{name} ended: {count} actors")


def _serving(*, ray: bool) -> Any:
    """The serving package, by name: what else the command does, it does without."""
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
