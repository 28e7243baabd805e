"""Arguments of commands that are made from what Python takes: each option of a build is described once."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Annotated, Any, get_args

import typer

from velo.errors import NativeLibraryError
from velo.options import BuildOptions, PublicField, limit_of
from velo.types import Memory

__all__ = ["Command", "takes_build_options"]

Command = Callable[..., None]


def takes_build_options(command: Command) -> Command:
    """Give a command an argument for each option of a build, in the place of its ``**options``."""
    signature = inspect.signature(command, eval_str=True)
    parameters = [one for one in signature.parameters.values() if one.kind is not one.VAR_KEYWORD]
    parameters += [
        inspect.Parameter(
            one.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=one.default,
            annotation=_argument(one),
        )
        for one in BuildOptions.public_fields()
    ]
    as_keywords = [one.replace(kind=inspect.Parameter.KEYWORD_ONLY) for one in parameters]
    command.__signature__ = signature.replace(parameters=as_keywords)  # type: ignore[attr-defined]
    command.__annotations__ = {one.name: one.annotation for one in parameters} | {"return": None}
    return command


def _argument(option: PublicField) -> Any:
    """A type as typer takes it, with what ``--help`` says."""
    if option.type == Memory | None:
        return Annotated[str | None, typer.Option(help=option.help, metavar="BUDGET")]
    if bool in (option.type, *get_args(option.type)):
        flag = option.name.replace("_", "-")
        return Annotated[option.type, typer.Option(f"--{flag}/--no-{flag}", help=option.help)]
    return Annotated[option.type, typer.Option(help=option.help + _range_text(option.name))]


def _range_text(name: str) -> str:
    """The limit of an argument, where it has one."""
    try:
        low, high = limit_of(name)
    except NativeLibraryError:  # none, or an installation without velo.h, of which `velo doctor` is to tell
        return ""
    return f" {low} to {high}."
