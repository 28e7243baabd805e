"""Output of commands: tables for people, JSON for programs, errors in one line, progress bars."""

from __future__ import annotations

import functools
import json
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NoReturn, ParamSpec

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from velo.building.build import Watch
from velo.errors import CorruptIndexError, VeloError
from velo.results import size_text

EXIT_ERROR = 1
EXIT_DAMAGED = 3
EXIT_INTERRUPTED = 130

Parameters = ParamSpec("Parameters")


def console(*, stderr: bool = False) -> Console:
    """A console on whatever stdout (or stderr) is now; wide enough for our tables where it is no terminal."""
    stream = sys.stderr if stderr else sys.stdout
    return Console(stderr=stderr, width=None if stream.isatty() else 110, highlight=False)


def emit_json(document: Mapping[str, Any]) -> None:
    """Print one JSON document on stdout."""
    sys.stdout.write(json.dumps(document, indent=2, default=_plain) + "\n")


def answer(as_json: bool, document: Mapping[str, Any], text: str) -> None:
    """Print the result of a command: `document` for programs, or `text` for people."""
    if as_json:
        emit_json(document)
    else:
        console().print(text)


def _plain(value: Any) -> Any:
    if hasattr(value, "item") and getattr(value, "ndim", 0) == 0:
        return value.item()
    if hasattr(value, "tolist"):
        return value.tolist()
    return str(value)


def reported(command: Callable[Parameters, None]) -> Callable[Parameters, None]:
    """Turn errors of a command into one line (or one JSON document) and an exit code, without a traceback.

    1 is an error, 2 wrong usage, 3 a damaged index, 130 an interrupt.
    """

    @functools.wraps(command)
    def run(*args: Parameters.args, **kwargs: Parameters.kwargs) -> None:
        try:
            command(*args, **kwargs)
        except VeloError as error:
            _fail(error, EXIT_DAMAGED if isinstance(error, CorruptIndexError) else EXIT_ERROR, kwargs)
        except KeyboardInterrupt as interrupt:
            sys.stderr.write(f"velo: interrupted{': ' if str(interrupt) else ''}{interrupt}\n")
            raise typer.Exit(EXIT_INTERRUPTED) from None
        except BrokenPipeError:
            sys.stderr.close()  # no reader is left, so nothing needs to be written at exit
            raise typer.Exit(EXIT_ERROR) from None

    return run


def _fail(error: VeloError, code: int, options: Mapping[str, Any]) -> NoReturn:
    line = " ".join(str(error).split())
    if options.get("as_json"):
        places = {
            name: value
            for name in ("argument", "file", "page", "row", "position", "needed_bytes")
            if (value := getattr(error, name)) is not None
        }
        emit_json({"error": {"type": type(error).__name__, "message": line, **places}})
    sys.stderr.write(f"velo: {line}\n")
    raise typer.Exit(code)


def table(*columns: str, title: str | None = None) -> Table:
    """An empty table; columns whose name ends in a colon are text, the others are numbers at the right."""
    grid = Table(
        title=title, title_justify="left", title_style="bold", header_style="bold", box=None, pad_edge=False
    )
    for column in columns:
        text = column.endswith(":")
        grid.add_column(column.removesuffix(":"), justify="left" if text else "right", no_wrap=not text)
    return grid


def facts(rows: Mapping[str, Any], title: str | None = None) -> Table:
    """A table of names and values."""
    grid = Table(
        title=title, title_justify="left", title_style="bold", box=None, show_header=False, pad_edge=False
    )
    grid.add_column(style="dim", no_wrap=True)
    grid.add_column()
    for name, value in rows.items():
        grid.add_row(name, Text(str(value)))
    return grid


def memory_table(info: Mapping[str, Any]) -> Table:
    """The memory of an open index and its budget, as ``Index.info`` gives them."""
    rows, floats = max(1, info["n"]), max(1, 4 * info["n"] * info["dim"])
    sizes = {**info["memory_bytes"], "together": info["memory_bytes_total"]}
    if info["memory_budget_bytes"]:  # workers and filters are outside it
        sizes["within the budget"] = info["memory_within_budget_bytes"]
        sizes["budget"] = info["memory_budget_bytes"]
    grid = table("memory:", "bytes", "B a vector", "of float32")
    for name, size in sizes.items():
        grid.add_row(name, size_text(size), f"{size / rows:.1f}", f"{size / floats:.1%}")
    return grid


def device_text(device: Mapping[str, Any]) -> str:
    """The device that reads the index, and the reason for the choice."""
    direct = "O_DIRECT" if device["direct"] else "buffered"
    return f"{device['name']}, {direct}: {device['reason']}"


class _Rate(ProgressColumn):
    def render(self, task: Task) -> Text:
        """Rows a second of this stage."""
        speed = task.finished_speed or task.speed
        return Text("" if speed is None else f"{speed:,.0f} rows/s", style="dim")


@contextmanager
def watching(what: str) -> Iterator[Watch | None]:
    """Progress bars on stderr, one a stage, with a rate and an ETA; None where stderr is no terminal."""
    err = console(stderr=True)
    if not err.is_terminal:
        yield None
        return
    columns = (
        TextColumn("{task.description:<18}"),
        BarColumn(bar_width=32),
        TextColumn("{task.percentage:>3.0f} %"),
        _Rate(),
        TimeRemainingColumn(compact=True, elapsed_when_finished=True),
    )
    with Progress(*columns, console=err, transient=False) as progress:
        tasks: dict[str, Any] = {}

        def watch(stage: str, done: int, total: int) -> None:
            for name, task in tasks.items():
                if name != stage and not progress.tasks[progress.task_ids.index(task)].finished:
                    progress.update(task, completed=progress.tasks[progress.task_ids.index(task)].total)
            if stage not in tasks:
                tasks[stage] = progress.add_task(f"{what} {stage}".strip(), total=max(total, 1))
            progress.update(tasks[stage], total=max(total, 1), completed=min(done, max(total, 1)))

        yield watch
