"""Every result says which library was measured; sections keep their results and their errors."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from bench.commands import report
from bench.harness import pages, sections
from bench.harness.runs import ROOT

SAMPLE = ROOT / "examples" / "data"
MODES = ("Debug", "ReleaseSafe", "ReleaseFast", "ReleaseSmall", "build mode not recorded")
MEASURED = re.compile(rf"Measured at `[0-9a-f]{{10}}(\+changes)?`, ({'|'.join(MODES)})[.; ]")
LINK = re.compile(r"\]\(([^)#]+)\)")
#: Rows are named, not linked: the site has no raw numbers.
ROWS = re.compile(r"`([\w.-]+\.jsonl)`")
#: Folders of rows that README names.
FOLDERS = re.compile(r"`(\w+)/`")
MODULE = report.__name__


def lines_of(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text().splitlines()]


def faults(folder: Path) -> list[str]:
    """Faults of results: pages without the library that was measured, files that no page shows."""
    wrong, shown = [], {"README.md"}
    for page in sorted(folder.glob("*.md")):
        text = page.read_text()
        shown |= set(LINK.findall(text)) - ({page.name} | {f"{page.stem}.md"})
        if page.name == "README.md":
            shown |= set(FOLDERS.findall(text))
            continue
        line = text.split("\n")[2]
        if not MEASURED.match(line):
            wrong.append(f"{page.name} does not say at which commit and in which mode it was measured")
            continue
        files = ROWS.findall(line)
        shown |= set(files)
        rows = [row for name in files for row in lines_of(folder / name)]
        measured = [row for row in rows if "head" not in row and "error" not in row]
        if any("library" not in row for row in measured if "section" in row or "dataset" in row):
            wrong.append(f"{page.name} has rows that do not name their library")
        elif files and line != pages.measured_line(rows, files):
            wrong.append(f"{page.name} names another library than its rows")
    return wrong + [
        f"no page shows {file.name}" for file in sorted(folder.iterdir()) if file.name not in shown
    ]


def test_results_say_what_was_measured_and_every_file_is_shown() -> None:
    results = ROOT / "docs" / "results"
    assert faults(results) == []
    nav = set(re.findall(r"results/(\S+\.md)", (ROOT / "mkdocs.yml").read_text()))
    assert nav == {page.name for page in results.glob("*.md")}


def test_faults_of_results_are_found(tmp_path: Path) -> None:
    library = {"commit": "a" * 40, "mode": "ReleaseSafe"}
    row = {"section": "one", "result": {}, "library": library}
    (tmp_path / "README.md").write_text("[a](good.md) [b](other.md) [c](silent.md) [d](bare.md)")
    pages.write(tmp_path, "good", [{"head": {}}, row], "# good\n\ntext\n")
    pages.write(tmp_path, "other", [row], "# other\n\ntext\n")
    (tmp_path / "other.jsonl").write_text(json.dumps(row | {"library": library | {"commit": "b" * 40}}))
    pages.write(tmp_path, "bare", [row, {"section": "two", "result": {}}], "# bare\n\ntext\n")
    (tmp_path / "silent.md").write_text("# silent\n\ntext\n")
    (tmp_path / "left.jsonl").write_text("")
    (tmp_path / "left.md").write_text((tmp_path / "good.md").read_text())
    assert faults(tmp_path) == [
        "bare.md has rows that do not name their library",
        "other.md names another library than its rows",
        "silent.md does not say at which commit and in which mode it was measured",
        "no page shows left.jsonl",
        "no page shows left.md",
    ]


def test_a_page_names_every_library_and_what_it_measured() -> None:
    one = {"commit": "a" * 40, "mode": "ReleaseSafe"}
    other = {"commit": "b" * 40 + pages.CHANGES, "mode": None}
    rows = [{"head": {}}, *({"section": str(number), "library": one} for number in range(9))]
    assert pages.measured_line(rows) == f"Measured at `{'a' * 10}`, ReleaseSafe."
    rows += [{"section": "late", "library": other}, {"section": "failed", "error": "too long"}]
    assert pages.measured_line(rows, ["a.jsonl"]) == (
        f"Measured at `{'b' * 10}+changes`, build mode not recorded (late); "
        f"`{'a' * 10}`, ReleaseSafe (9 parts). Rows: `a.jsonl`."
    )
    assert pages.measured_line([{"section": "failed", "error": "too long"}]) == "Nothing was measured."


def test_the_measured_library_has_a_commit_and_a_mode(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def git(*words: str) -> str:
        who = ("-c", "user.name=a", "-c", "user.email=a@b")
        done = subprocess.run(
            ["git", "-C", tmp_path, *who, *words], capture_output=True, text=True, check=True
        )
        return done.stdout.strip()

    results = tmp_path / pages.RESULTS
    for folder in (tmp_path / "velo", results):
        folder.mkdir(parents=True)
        (folder / "__init__.py").write_text("")
    monkeypatch.setattr(pages.velo, "__file__", str(tmp_path / "velo" / "__init__.py"))
    assert pages.library()["commit"] == "unknown"
    git("init", "-q")
    git("add", "-A")
    git("commit", "-q", "-m", "first")
    head = git("rev-parse", "HEAD")
    assert pages.library() == {"commit": head, "mode": "ReleaseSafe"}
    (results / "__init__.py").write_text("measured")  # a run writes there while it goes on
    (results / "new.jsonl").write_text("")
    assert pages.library()["commit"] == head
    (tmp_path / "velo" / "new.py").write_text("")
    changed = pages.library()
    assert changed["commit"] == head + pages.CHANGES
    assert pages.is_changed(changed)


def test_a_library_older_than_its_sources_is_not_that_of_the_commit(tmp_path: Path) -> None:
    made, source = tmp_path / "velo" / "_native" / "libvelo.so", tmp_path / "zig" / "root.zig"
    for at_s, file in enumerate((source, made)):
        file.parent.mkdir(parents=True)
        file.write_text("")
        os.utime(file, (at_s, at_s))
    assert not pages._is_older(tmp_path / "velo", ["../zig/root.zig", "../zig/gone.zig"])
    os.utime(source, (9, 9))
    assert pages._is_older(tmp_path / "velo", ["../zig/root.zig", "../zig/gone.zig"])


# ---- runs that are taken up again ----


def context(work: Path, queries: int = 60) -> sections.Context:
    options = {"budgets": ["20%"], "peers": [], "lists": [24, 96], "four_bits": "4+4"}
    return sections.Context(str(SAMPLE), str(work), 1000, queries, 10, 2, options)


def test_a_resumed_run_measures_only_missing_sections(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = context(tmp_path / "work")
    steps = {"disk_ratio": sections.Section("disk_ratio", report.disk_ratio, 60.0)}
    folder = tmp_path / "kept"

    def measured(context: sections.Context = asked, only: list[str] | None = None) -> dict[str, Any]:
        return dict(sections.run(MODULE, steps, context, folder=folder, only=only)["disk_ratio"])

    first = measured()
    assert first["library"] == pages.library()
    # As if nothing had changed since the commit, wherever this test runs.
    library = {"commit": "c" * 40, "mode": "ReleaseSafe"}
    (folder / "disk_ratio.json").write_text(json.dumps(first | {"library": library}))
    monkeypatch.setattr(pages, "library", lambda: library)
    assert measured() == first | {"library": library}
    called: list[str] = []

    def call(module: str, name: str, *rest: Any) -> dict[str, Any]:
        called.append(name)
        return first | {"library": library}

    monkeypatch.setattr(sections, "call", call)
    assert measured() == first | {"library": library}
    assert called == []
    measured(only=["disk_ratio"])
    measured(context(tmp_path / "work", queries=50))  # asked otherwise
    assert called == ["disk_ratio"] * 2
    (folder / "disk_ratio.json").write_text(json.dumps({"section": "disk_ratio", "error": "too long"}))
    measured()
    assert called == ["disk_ratio"] * 3
    monkeypatch.setattr(pages, "library", lambda: library | {"commit": "d" * 40})
    measured()
    assert called == ["disk_ratio"] * 4
    library["commit"] += pages.CHANGES  # what was changed then and what is now need not be the same
    monkeypatch.setattr(pages, "library", lambda: library)
    measured()
    assert called == ["disk_ratio"] * 5


def children(pid: int) -> list[int]:
    return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def is_running(pid: int) -> bool:
    try:
        return ") Z " not in Path(f"/proc/{pid}/stat").read_text()
    except FileNotFoundError:
        return False


def test_an_interrupted_run_ends_its_measurements(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "bench", "report", "--data", SAMPLE, "--work", tmp_path / "work"]
    command += ["--out", tmp_path / "out", "--peers", "none"]
    env = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
    run = subprocess.Popen(command, cwd=ROOT, env=env, stderr=subprocess.DEVNULL)
    try:
        started: list[int] = []
        while not started and run.poll() is None:
            started = [child for child in children(run.pid) if b"bench.harness.sections" in _command(child)]
            time.sleep(0.02)
        run.send_signal(signal.SIGTERM)
        assert run.wait(60) == 143
        assert started
        end = time.monotonic() + 60  # killed, and on a busy machine not gone yet
        while any(is_running(pid) for pid in started):
            assert time.monotonic() < end
            time.sleep(0.02)
    finally:
        run.kill()
        run.wait()
    assert not (tmp_path / "out").exists()


def _command(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except FileNotFoundError:
        return b""


def test_a_section_that_fails_or_lasts_too_long_leaves_its_reason(tmp_path: Path) -> None:
    asked = context(tmp_path)
    failed = sections.call("bench.no_such_module", "x", asked, 60, tmp_path / "a.log")
    assert "no_such_module" in failed["error"]
    slow = sections.call(MODULE, "velo20", asked, 0.05, tmp_path / "b.log")
    assert slow["error"] == "stopped after 0 s"


def test_the_reason_is_the_error_under_a_failed_runner() -> None:
    log = """RuntimeError: velo 20% failed (1); log ends:
Traceback (most recent call last):
velo.errors.BudgetTooSmallError: a build of these vectors takes 20 MB
/bench/peers/velo_runner.py: the build failed
"""
    assert sections.reason_in(log).startswith("velo.errors.BudgetTooSmallError")
    assert sections.reason_in("one\ntwo\n") == "two"
    assert sections.reason_in("") == ""


def test_sections_that_were_not_asked_for_are_taken_as_last_measured(tmp_path: Path) -> None:
    def never(_: sections.Context) -> sections.Results:
        raise AssertionError

    named = {name: sections.Section(name, never, 1) for name in ("old", "new")}
    (tmp_path / "old.json").write_text(json.dumps({"section": "old", "result": {"x": 1}}))
    found = sections.run(MODULE, named, context(tmp_path), folder=tmp_path, only=[])
    assert found["old"]["result"] == {"x": 1}
    assert found["new"]["error"] == "not asked for"
