"""The command ``vectordbbench velo``."""

from __future__ import annotations

from typing import Annotated, Unpack

import click
from vectordb_bench.backend.clients import DB
from vectordb_bench.cli.cli import CommonTypedDict, cli, click_parameter_decorators_from_typed_dict, run


class VeloTypedDict(CommonTypedDict):
    path: Annotated[str, click.option("--path", required=True, help="folder of the index")]
    memory: Annotated[str | None, click.option("--memory", help="bytes, or a size such as 512MiB")]
    threads: Annotated[int | None, click.option("--threads", type=int, help="of searches; default: all")]
    recall: Annotated[float | None, click.option("--recall", type=float, help="to aim for")]
    list_size: Annotated[int | None, click.option("--list-size", type=int, help="instead of a recall")]


@cli.command(name="velo")
@click_parameter_decorators_from_typed_dict(VeloTypedDict)
def Velo(**parameters: Unpack[VeloTypedDict]) -> None:
    from .config import VeloConfig, VeloIndexConfig

    chosen = {name: parameters[name] for name in ("memory", "threads", "recall", "list_size")}
    run(
        db=DB.Velo,
        db_config=VeloConfig(db_label=parameters["db_label"], path=parameters["path"]),
        db_case_config=VeloIndexConfig(**chosen),
        **parameters,
    )
