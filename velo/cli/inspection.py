"""``velo info``, ``velo verify`` and ``velo doctor``."""

from __future__ import annotations

import errno
import os
import platform
import resource
import sys
from pathlib import Path
from typing import Annotated, Any, Final

import typer

import velo
from velo import _native
from velo._native import loader
from velo.cli.arguments import AsJson, IndexPath, IoDevice, MemoryText, PlanChoice, folders_of
from velo.cli.output import EXIT_ERROR, console, device_text, emit_json, facts, memory_table, table
from velo.errors import GpuError, NativeLibraryError, NotAnIndexError
from velo.folder.replace import clean_folder
from velo.index import device_dict, gpu_dict, open_index, verify_folder
from velo.options import IO_CODES, links_steps
from velo.planning.budgets import PlannedBudget, plans
from velo.results import kept_text, size_text

#: Facts of a GPU that `velo doctor` shows; the others are of an open index.
_GPU_FACTS: Final = ("name", "ordinal", "compute", "driver", "total_bytes")
#: Device memory of a row of 128 dimensions in 4 bits with 32 links.
_GPU_ROW_BYTES: Final = 200


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
        _show_budgets(path, memory=memory, recall=recall, k=k, as_json=as_json)
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


def _show_budgets(path: Path, *, memory: str | None, recall: float, k: int, as_json: bool) -> None:
    """Print a line for each budget."""
    rows = plans(path, memory=memory, recall=recall, k=k)
    if as_json:
        emit_json({"recall": recall, "k": k, "budgets": [row.to_dict() for row in rows]})
        return
    out = console()
    shown = table("budget", "size", "links", "recall", "reads", "rounds", "estimates", "+5 %", "build")
    opening = [row for row in rows if row.plan is not None]
    kept = _bought(opening)
    for row in opening[:kept]:
        build = "–" if row.build_bits is None else "{}+{}".format(*row.build_bits)
        shown.add_row(_share(row), size_text(row.budget_bytes), _links(row), *_measured(row), build)
    out.print(shown)
    out.print()
    if opening:
        out.print(
            f"less than {_share(opening[0])} does not open this index; its bits a dimension in memory: "
            f"{opening[0].memory_bits}"
        )
        out.print("build: bits in memory and on disk that velo build --search-memory would choose")
    if kept < len(opening):
        out.print(f"more than {_share(opening[kept - 1])} buys nothing more")
    if any("shared" in _links(row) for row in opening[:kept]):
        out.print("shared: links in a list that neighboring vertices share")
    if any(row.recall is None for row in opening):
        out.print("? is not known: the index was built without calibration")
    out.print(
        f"for recall {recall} at k = {k}, queries never seen before; +5 %: reads that so much more saves"
    )


def _share(row: PlannedBudget) -> str:
    """Enough of it that one budget is not another."""
    return f"{row.share:.0%}" if row.share * 100 % 1 < 1e-6 else f"{row.share:.1%}"


def _links(row: PlannedBudget) -> str:
    if row.plan == "links_on_disk":
        return "on disk"
    if row.plan == "walk":
        return f"none; {row.page_codes_kept} code{'s' if row.page_codes_kept != 1 else ''} a page"
    return f"{row.links_kept}, shared" if row.links_kept in links_steps(shared=True) else str(row.links_kept)


def _measured(row: PlannedBudget) -> tuple[str, ...]:
    if row.recall is None or row.reads is None or row.more is None:
        return ("?",) * 5
    saved = row.more["reads"] - row.reads
    return (
        f"{row.recall:.3f}",
        f"{row.reads:.1f}",
        f"{row.rounds:.1f}",
        f"{row.estimates:,.0f}",
        f"{saved:+.1f}" if round(saved, 1) else "–",
    )


def _bought(rows: list[PlannedBudget]) -> int:
    """The number of budgets that improve on the one before."""
    kept = len(rows)
    while kept > 1 and _same(rows[kept - 1], rows[kept - 2]):
        kept -= 1
    return kept


def _same(row: PlannedBudget, before: PlannedBudget) -> bool:
    names = ("plan", "links_kept", "page_codes_kept", "list_size", "recall", "reads", "rounds")
    return row.plan is not None and all(getattr(row, name) == getattr(before, name) for name in names)


def _print_info(one: dict[str, Any]) -> None:
    out = console()
    n = one["n"]
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
                "device": device_text(one["device"]),
                "workers": f"{one['threads']} threads, {one['queries_in_flight']} queries in flight each",
                **({"deleted": f"{one['live']['dead']:,} rows"} if one["live"] else {}),
                "vectors.bin": "stored" if one["stores_vectors"] else "not stored",
                "uuid": one["uuid"],
            },
            title=one["path"],
        )
    )
    out.print()
    out.print(memory_table(one))
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
        device = _native.new("velo_device_info")
        probed = _native.lib.velo_device_probe(os.fsencode(folder), IO_CODES["auto"], device)
        _native.check(probed, "folder")
        report["device"] = device_dict(device)
        report["gpus"] = _gpus()
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


def _gpus() -> list[dict[str, Any]] | dict[str, str]:
    """Each GPU, or the reason why there is none to use."""
    found: list[dict[str, Any]] = []
    while True:
        gpu = _native.new("velo_gpu_info")
        try:
            _native.check(_native.lib.velo_gpu_probe(len(found), gpu), "device")
        except GpuError as error:
            return found or {"none": error.message}
        free = int(gpu.free_bytes)
        found.append(
            {name: value for name, value in gpu_dict(gpu).items() if name in _GPU_FACTS}
            | {"free_bytes": free, "fits_rows": free // _GPU_ROW_BYTES}
        )
        if len(found) >= gpu.count:
            return found


def _gpu_text(gpu: dict[str, Any]) -> str:
    return (
        f"{gpu['name']}, compute {gpu['compute']}, driver for CUDA {gpu['driver']}, "
        f"{size_text(gpu['free_bytes'])} free of {size_text(gpu['total_bytes'])}: "
        f"room for about {gpu['fits_rows'] / 1e6:,.0f} million rows of 128 dimensions"
    )


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
        text = f"{library['version']}, {library['build_mode']}, kernels {library['cpu_level']}"
        rows["library"] = f"{text} ({library['path']})"
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
        gpus = report["gpus"]
        if isinstance(gpus, dict):
            rows["gpu"] = f"none: {gpus['none']}"
        else:
            rows |= {f"cuda:{number}": _gpu_text(gpu) for number, gpu in enumerate(gpus)}
    rows["serving"] = ", ".join(
        f"{name} {version or 'not installed'}" for name, version in report["serving"].items()
    )
    out.print(facts(rows))


def _errno_text(number: int) -> str:
    return f"{errno.errorcode.get(abs(number), abs(number))}: {os.strerror(abs(number))}"
