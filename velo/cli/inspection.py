"""``velo info``, ``velo verify`` and ``velo doctor``."""

from __future__ import annotations

import errno
import os
import platform
import resource
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

import velo
from velo import _native
from velo._native import loader
from velo.cli.arguments import AsJson, IndexPath, IoDevice, MemoryText, PlanChoice, folders_of
from velo.cli.budgets import show as show_budgets
from velo.cli.output import EXIT_ERROR, console, emit_json, facts, table
from velo.errors import NativeLibraryError, NotAnIndexError
from velo.folder.leftovers import clean_folder
from velo.index import device_dict, open_index, verify_folder
from velo.options import IO_CODES
from velo.results import kept_text, size_text

__all__ = ["doctor", "info", "probe", "verify"]


def info(
    path: IndexPath,
    memory: MemoryText = None,
    io: IoDevice = "auto",
    plan: PlanChoice = "auto",
    budgets: Annotated[
        bool, typer.Option("--budgets", help="Show what each budget would buy, and what another 5 % would.")
    ] = False,
    recall: Annotated[float, typer.Option(help="With --budgets: the recall of the searches.")] = 0.95,
    k: Annotated[int, typer.Option("-k", "--k", help="With --budgets: the neighbors of each query.")] = 10,
    as_json: AsJson = False,
) -> None:
    """Print what an index is, what it costs and how memory would be divided."""
    if budgets:
        show_budgets(path, memory=memory, recall=recall, k=k, as_json=as_json)
        return
    indexes = []
    how: dict[str, Any] = {"memory": memory, "io": io, "plan": plan}
    for folder in folders_of(path):
        with open_index(folder, **how) as index:
            indexes.append(index.info())
    if as_json:
        emit_json(indexes[0] if len(indexes) == 1 else {"shards": indexes})
        return
    for one in indexes:
        _print_info(one)


def _print_info(one: dict[str, Any]) -> None:
    out = console()
    n, floats = one["n"], one["n"] * one["dim"] * 4
    device = one["device"]
    direct = "O_DIRECT" if device["direct"] else "buffered"
    out.print(
        facts(
            {
                "vectors": f"{n:,} x {one['dim']} {one['dtype']}, {one['metric']}, {one['ids']} ids",
                "columns": ", ".join(one["columns"]) or "none",
                "codes": f"{one['memory_bits']} bits a dimension in memory + {one['record_bits']} on disk",
                "graph": f"degree {one['degree']}, "
                + (
                    f"{one['edges_per_vertex']:.1f} edges a vertex in pages, "
                    f"{one['adjacency_bits_per_edge']:.1f} bits an edge"
                    if one["page_links"]
                    else "no edges in pages"
                ),
                "pages": f"{one['page_count']:,} of {one['page_size']:,} B, "
                f"{one['records_per_page']:.1f} records each",
                "plan": f"{one['plan']}, {kept_text(one)} in memory, {one['links_built']} links built",
                "device": f"{device['name']}, {direct}: {device['reason']}",
                "workers": f"{one['threads']} threads, {one['queries_in_flight']} queries in flight each",
                **({"deleted": f"{one['live']['dead']:,} rows"} if one["live"] else {}),
                "vectors.bin": "stored" if one["stores_vectors"] else "not stored",
                "uuid": one["uuid"],
            },
            title=one["path"],
        )
    )
    memory = table("memory:", "bytes", "B a vector", "of float32")
    for name, size in (*one["memory_bytes"].items(), ("together", one["memory_bytes_total"])):
        memory.add_row(name, size_text(size), f"{size / max(1, n):.1f}", f"{size / max(1, floats):.1%}")
    if one["memory_budget_bytes"]:
        budget = one["memory_budget_bytes"]
        within = one["memory_within_budget_bytes"]  # workers and filters stand beside it
        memory.add_row(
            "within the budget",
            size_text(within),
            f"{within / max(1, n):.1f}",
            f"{within / max(1, floats):.1%}",
        )
        memory.add_row(
            "budget", size_text(budget), f"{budget / max(1, n):.1f}", f"{budget / max(1, floats):.1%}"
        )
    out.print()
    out.print(memory)
    if one["cache_refused"]:
        out.print("the system refused memory for cached pages; searches read them")
    disk = table("disk:", "bytes", "B a vector")
    for name, size in (*one["disk_bytes"].items(), ("together", sum(one["disk_bytes"].values()))):
        disk.add_row(name, size_text(size), f"{size / max(1, n):.1f}")
    out.print()
    out.print(disk)


def verify(
    path: IndexPath,
    clean: Annotated[
        bool,
        typer.Option(
            "--clean", help="First remove what killed builds and exchanges left there and beside it."
        ),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Read every file of an index whole and check every checksum, page and link."""
    removed = clean_folder(path) if clean else []
    pages = {folder.name: verify_folder(folder) for folder in folders_of(path)}
    if not pages:
        raise NotAnIndexError(f"{path} is a collection without shards", argument="path")
    if as_json:
        report = {"path": str(path), "sound": True, "pages_checked": sum(pages.values())}
        emit_json(report | {"removed": removed} if clean else report)
        return
    for name in removed:
        console().print(f"{name}: left by a process that was killed, and removed")
    console().print(f"{path} is sound: {sum(pages.values()):,} pages and every other file checked")


def probe(folder: Path, io: str = "auto") -> dict[str, Any]:
    """The device that files in `folder` would be read with."""
    device = _native.new("velo_device_info")
    _native.check(_native.lib.velo_device_probe(os.fsencode(folder), IO_CODES[io], device), "folder")
    return dict(device_dict(device))


def doctor(
    folder: Annotated[Path, typer.Argument(help="Folder whose device to look at.")] = Path(),
    as_json: AsJson = False,
) -> None:
    """Say which device, processor level and library are in use, why, and how to get better ones."""
    memlock = resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]
    report: dict[str, Any] = {
        "velo": velo.__version__,
        "python": f"{platform.python_version()} ({sys.executable})",
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "cores": len(os.sched_getaffinity(0)),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "memlock_bytes": None if memlock == resource.RLIM_INFINITY else memlock,
    }
    problem = None
    try:
        report["library"] = {
            "path": str(loader.library_path()),
            "version": _native.version(),
            "build_mode": _native.build_mode(),
            "cpu_level": _native.text(_native.lib.velo_cpu_level()),
        }
        report["folder"] = str(folder.resolve())
        report["device"] = probe(folder)
    except NativeLibraryError as error:
        problem = error
        report["library"] = {"error": error.message}
    report["serving"] = _serving()
    if as_json:
        emit_json(report)
    else:
        _print_doctor(report)
    if problem is not None:
        raise typer.Exit(EXIT_ERROR)


def _serving() -> dict[str, str | None]:
    from importlib.metadata import PackageNotFoundError, version

    versions: dict[str, str | None] = {}
    for name in ("ray", "fastapi", "uvicorn"):
        try:
            versions[name] = version(name)
        except PackageNotFoundError:
            versions[name] = None
    return versions


def _print_doctor(report: dict[str, Any]) -> None:
    out = console()
    library = report["library"]
    memlock = report["memlock_bytes"]
    rows: dict[str, Any] = {
        "velo": report["velo"],
        "python": report["python"],
        "system": f"{report['system']}, {report['cores']} cores, {size_text(report['memory_bytes'])}",
        "locked memory": "unlimited" if memlock is None else f"at most {size_text(memlock)}",
    }
    if "error" in library:
        rows["library"] = library["error"]
    else:
        what = f"{library['version']}, {library['build_mode']}, kernels {library['cpu_level']}"
        rows["library"] = f"{what} ({library['path']})"
        device = report["device"]
        rows["folder"] = report["folder"]
        rows["device"] = f"{device['name']}: {device['reason']}"
        rows["reads"] = (
            "O_DIRECT" if device["direct"] else f"buffered ({_errno_text(device['direct_errno'])})"
        )
        if device["uring_errno"]:
            rows["io_uring"] = f"refused ({_errno_text(device['uring_errno'])})"
        if device["advice"]:
            rows["advice"] = device["advice"]
    rows["serving"] = ", ".join(
        f"{name} {version or 'not installed'}" for name, version in report["serving"].items()
    )
    out.print(facts(rows))


def _errno_text(number: int) -> str:
    return f"{errno.errorcode.get(abs(number), abs(number))}: {os.strerror(abs(number))}"
