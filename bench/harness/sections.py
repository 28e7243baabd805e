"""Sections of a report: each measured in a process group of its own, with a time limit, kept on disk.

A section that fails or takes too long leaves its reason, not a hole: the lines that need it say "not
measured: why". What was measured stays under WORK: one section can be measured again without the others, and
a run that was ended is taken up again by the same command.
"""

from __future__ import annotations

import json
import os
import re
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from bench.harness import datasets, pages
from bench.harness.datasets import Dataset

Results = dict[str, Any]


@dataclass(frozen=True)
class Context:
    """The input of every section, which travels to the section's process as JSON.

    Of a set's queries the first ``query_count`` are measured and others warm caches up; ``single_count`` are
    asked one at a time. ``options`` are those of the report.
    """

    data: str
    work: str
    limit: int | None
    query_count: int
    single_count: int
    threads: int
    options: dict[str, Any]

    def dataset(self, *, warm_up: int = 200) -> Dataset:
        """The set with the queries to measure and ``warm_up`` more behind them, if it has as many."""
        return datasets.load(Path(self.data), limit=self.limit, query_count=self.query_count + warm_up)

    @property
    def folder(self) -> Path:
        return Path(self.work)


@dataclass(frozen=True)
class Section:
    """``measure`` returns what goes into the report, as JSON."""

    name: str
    measure: Callable[[Context], Results]
    limit_s: float


def call(module: str, name: str, context: Context, limit_s: float, log: Path) -> Results:
    """Run section ``name`` of ``module`` in a process group of its own.

    Returns ``{"result": …}``, with the library that was measured, or ``{"error": sentence}``; and seconds,
    processor time and the machine's load.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    request, answer = request_file(log), log.with_suffix(".answer.json")
    request.write_text(json.dumps(asdict(context)))
    answer.unlink(missing_ok=True)
    root = Path(__file__).resolve().parents[2]
    env = dict(os.environ)
    env["PYTHONPATH"] = os.pathsep.join([str(root), *filter(None, [env.get("PYTHONPATH")])])
    command = [sys.executable, "-m", "bench.harness.sections", module, name, str(request), str(answer)]
    start, cpu_start = time.perf_counter(), children_cpu_s()
    result: Results
    with log.open("w") as file:
        child = subprocess.Popen(
            command, stdout=file, stderr=subprocess.STDOUT, env=env, start_new_session=True
        )
        try:
            code = child.wait(timeout=limit_s)
        except BaseException as stopped:
            os.killpg(child.pid, signal.SIGKILL)
            child.wait()
            if not isinstance(stopped, subprocess.TimeoutExpired):
                raise
            code = None
    if code == 0 and answer.exists():
        result = json.loads(answer.read_text())
    elif code is None:
        result = {"error": f"stopped after {limit_s:,.0f} s"}
    else:
        result = {"error": reason_in(log.read_text(errors="replace")) or f"ended with {code}"}
    return result | {
        "section": name,
        "seconds": round(time.perf_counter() - start, 1),
        "cpu_s": round(children_cpu_s() - cpu_start, 1),
        "load": round(os.getloadavg()[0], 2),
        "measured_at": time.strftime("%Y-%m-%d %H:%M:%S"),
    }


def reason_in(log: str) -> str:
    """The line that says why: the last that names an error other than that a runner failed, else the last."""
    lines = [line.strip()[:300] for line in log.splitlines() if line.strip()]
    reasons = [line for line in lines if re.match(r"[\w.]*(Error|Missing|Exception)\b", line)]
    reasons = [line for line in reasons if not line.startswith("RuntimeError")] or reasons
    return (reasons or lines or [""])[-1]


def children_cpu_s() -> float:
    """Processor time of all processes that were started from here and have ended, theirs included."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def request_file(log: Path) -> Path:
    """The last input of the section with this log."""
    return log.with_suffix(".request.json")


def run(
    module: str, sections: Mapping[str, Section], context: Context, *, folder: Path, only: list[str] | None
) -> dict[str, Results]:
    """Measure the sections named by ``only``; what ``folder`` keeps of the others is used.

    Without ``only`` all are measured but those that an earlier run measured with this very library and these
    very options: so a run that was ended goes on where it was.
    """
    unknown = [name for name in only or [] if name not in sections]
    if unknown:
        raise datasets.DataError(f"no section {unknown[0]!r}; there are {', '.join(sections)}")
    folder.mkdir(parents=True, exist_ok=True)
    library = pages.library()
    results: dict[str, Results] = {}
    for name, section in sections.items():
        file = folder / f"{name.replace(':', '-')}.json"
        log = file.with_suffix(".log")
        if name in only if only is not None else not _is_measured(file, log, context, library):
            print(f"{module.rpartition('.')[2]}: {name}", file=sys.stderr, flush=True)
            file.unlink(missing_ok=True)  # what is kept belongs to the request beside it, also after a kill
            results[name] = call(module, name, context, section.limit_s, log)
            if error := results[name].get("error"):
                print(f"  not measured: {error}", file=sys.stderr, flush=True)
            file.write_text(json.dumps(results[name]))
        elif file.exists():
            results[name] = json.loads(file.read_text())
        else:
            results[name] = {"section": name, "error": "not asked for"}
    return results


def _is_measured(file: Path, log: Path, context: Context, library: dict[str, str | None]) -> bool:
    """Whether ``file`` keeps what measuring its section now would bring, but for chance."""
    if not file.exists() or pages.is_changed(library):
        return False
    kept = json.loads(file.read_text())
    asked = json.loads(request_file(log).read_text())
    return bool(kept.get("library") == library and asked == json.loads(json.dumps(asdict(context))))


def main() -> None:
    """Entry of a section's process."""
    import importlib

    module, name, request, answer = sys.argv[1:]
    context = Context(**json.loads(Path(request).read_text()))
    sections: Mapping[str, Section] = importlib.import_module(module).sections_of(context)
    library = pages.library()
    Path(answer).write_text(json.dumps({"library": library, "result": sections[name].measure(context)}))


if __name__ == "__main__":
    main()
