"""The velo command, as a program: output, JSON, exit codes, one-line errors."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

import velo
from velo.cli import demo
from velo.cli.app import app
from velo.formats import write_truth, write_vectors
from velo.testing import brute_force, synthetic_metadata, synthetic_vectors

COMMANDS = ("build", "search", "info", "tune", "delete", "verify", "doctor", "demo", "serve", "stop")
QUICK = ("--degree", "16", "--links-kept", "16", "--build-list-size", "40", "--threads", "1")


def environment() -> dict[str, str]:
    return os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path), "COLUMNS": "200"}


def run(*arguments: Any) -> Any:
    """The command in this process; its exit code, stdout and stderr."""
    done = CliRunner().invoke(app, [str(one) for one in arguments])
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    return SimpleNamespace(returncode=done.exit_code, stdout=done.stdout, stderr=done.stderr)


def program(*arguments: Any, **options: Any) -> subprocess.CompletedProcess[str]:
    """The command as a program of its own."""
    return subprocess.run(
        [sys.executable, "-W", "error", "-m", "velo", *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
        env=environment(),
        **options,
    )


def document(*arguments: Any) -> Any:
    done = run(*arguments, "--json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Vectors, queries, labels and truth in files."""
    folder = tmp_path_factory.mktemp("files")
    rows = synthetic_vectors(2_050, 24, seed=6)
    table = synthetic_metadata(2_000, seed=6).append_column(
        "name", [[f"v{number}" for number in range(2_000)]]
    )
    truth = brute_force(rows[:2000], rows[2000:], 20)
    wanted = np.arange(50, dtype=np.uint8) % 10
    mask = np.asarray(table.column("label"))[None, :] == wanted[:, None]
    filtered = brute_force(rows[:2000], rows[2000:], 10, mask=mask)
    write_vectors(folder / "base.fbin", rows[:2000])
    write_vectors(folder / "queries.npy", rows[2000:])
    pq.write_table(table, folder / "labels.parquet")
    pq.write_table(pa.table({"label": pa.array(wanted)}), folder / "asked.parquet")
    write_truth(folder / "truth.bin", truth.ids, truth.distances)
    write_truth(folder / "truth_label.bin", filtered.ids, filtered.distances)
    return folder


@pytest.fixture(scope="module")
def built(files: Path) -> Path:
    path = files / "i.velo"
    done = program("build", files / "base.fbin", path, "--metadata", files / "labels.parquet", *QUICK)
    assert done.returncode == 0, done.stderr
    assert "2,000" in done.stdout
    assert done.stderr == "", "quiet where stderr is no terminal"
    return path


def test_help_names_every_command_and_every_command_has_json() -> None:
    shown = run("--help")
    assert shown.returncode == 0
    for command in COMMANDS:
        assert command in shown.stdout
        inner = run(command, "--help")
        assert inner.returncode == 0
        assert "--json" in inner.stdout
    assert program("--version").stdout == f"velo {velo.__version__}\n"
    for said in ("3 a damaged index", "130 interrupted", "--install-completion"):
        assert said in " ".join(shown.stdout.split()), "whatever the width"


@pytest.mark.parametrize("missing", ["typer", "rich"])
def test_without_its_packages_the_command_says_what_to_install(missing: str) -> None:
    blocked = f"import sys; sys.modules[{missing!r}] = None; import velo, velo.cli; "
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", f"{blocked} print(velo.__version__); velo.cli.main()"],
        capture_output=True,
        text=True,
        check=False,
        env=environment(),
    )
    assert done.stdout == f"{velo.__version__}\n"
    assert done.returncode == 1
    assert done.stderr == f"velo: the command line needs {missing}: pip install 'veloann[cli]'\n"


def test_wrong_usage_is_2() -> None:
    for arguments in (("fly",), ("build",), ("search", "x"), ("build", "a", "b", "--degree", "many")):
        done = run(*arguments)
        assert done.returncode == 2
        assert "Traceback" not in done.stderr


def test_build_tells_what_it_made(files: Path, tmp_path: Path) -> None:
    told = document("build", files / "base.fbin", tmp_path / "i", "--metric", "cosine", *QUICK)
    assert (told["n"], told["dim"], told["metric"]) == (2_000, 24, "cosine")
    assert told["disk_bytes"] == sum(entry.stat().st_size for entry in (tmp_path / "i").iterdir())
    named = ("--metadata", files / "labels.parquet", "--ids-column", "name")
    document("build", files / "base.fbin", tmp_path / "named", *named, *QUICK)
    with velo.open(tmp_path / "named") as index:
        assert index.info()["ids"] == "string"
        assert "name" not in index.info()["columns"]
        assert index.search(np.zeros(24, np.float32), 1).ids[0].startswith("v")


def test_build_names_the_columns_that_it_leaves_out(tmp_path: Path) -> None:
    rows = np.random.default_rng(1).normal(size=(50, 8)).astype(np.float32)
    vectors = pa.FixedSizeListArray.from_arrays(pa.array(rows.reshape(-1)), 8)
    numbers = list(range(100, 150))
    pq.write_table(pa.table({"id": numbers, "vector": vectors, "price": numbers}), tmp_path / "t.parquet")
    done = run("build", tmp_path / "t.parquet", tmp_path / "i", *QUICK)
    assert done.returncode == 0
    assert "'id', 'price'" in done.stderr
    assert "--ids-column takes one" in done.stderr
    assert "--keep-columns keeps the others" in done.stderr
    done = run(
        "build", tmp_path / "t.parquet", tmp_path / "j", "--ids-column", "id", "--keep-columns", *QUICK
    )
    assert (done.returncode, done.stderr) == (0, "")
    with velo.open(tmp_path / "j") as index:
        assert index.info()["columns"] == ["price"]
        assert index.search(rows[7], 1).ids.tolist() == [107]
    done = run("build", tmp_path / "t.parquet", tmp_path / "k", "--metadata", "x.parquet", "--keep-columns")
    assert done.returncode == 1
    assert "--keep-columns and --metadata" in done.stderr


def test_build_in_shards(files: Path, tmp_path: Path) -> None:
    told = document("build", files / "base.fbin", tmp_path / "c", "--shards", 3, *QUICK)
    assert (told["n"], told["shards"]) == (2_000, 3)
    assert len(document("info", tmp_path / "c")["shards"]) == 3
    assert document("verify", tmp_path / "c")["sound"]


def test_search_measures_recall(built: Path, files: Path) -> None:
    told = document(
        "search", built, files / "queries.npy", "--truth", files / "truth.bin", "-k", 10, "--memory", "20%"
    )
    assert told["recall"] >= 0.9
    assert told["queries"] == 50
    assert np.shape(told["ids"]) == (50, 10)
    assert told["reads"] > 0
    shown = run("search", built, files / "queries.npy", "--truth", files / "truth.bin", "--explain")
    assert "recall@10" in shown.stdout
    assert "hops" in shown.stdout


def test_search_with_a_filter_of_each_query(built: Path, files: Path) -> None:
    asked = ("--filter", '{"label": "@label"}', "--query-table", files / "asked.parquet")
    truth = ("--truth", files / "truth_label.bin", "--memory", "20%")
    early = document("search", built, files / "queries.npy", *asked, *truth)
    assert early["recall"] >= 0.9
    late = document("search", built, files / "queries.npy", *asked, *truth, "--filter-plan", "late")
    assert late["reads"] > early["reads"]
    one = document(
        "search", built, files / "queries.npy", "--filter", '{"price": {"$lt": 0.01}}', "--first", 5
    )
    assert one["queries"] == 5
    as_sql = document("search", built, files / "queries.npy", "--filter", "price < 0.01", "--first", 5)
    assert as_sql["ids"] == one["ids"]
    nobody = document("search", built, files / "queries.npy", "--filter", '{"label": 99}', "--first", 2)
    assert nobody["ids"] == [[-1] * 10] * 2
    assert nobody["distances"] == [[None] * 10] * 2


def test_search_by_groups_and_by_radius(built: Path, files: Path, tmp_path: Path) -> None:
    asked = ("search", built, files / "queries.npy", "--first", 4)
    told = document(*asked, "--group-by", "label", "--group-size", 2, "-k", 3)
    assert np.shape(told["ids"]) == np.shape(told["distances"]) == (4, 3, 2)
    assert [len(set(values)) for values in told["groups"]] == [3] * 4
    assert told["group_sizes"] == [[2, 2, 2]] * 4
    shown = run(*asked, "--group-by", "label", "-k", 3)
    assert "group" in shown.stdout
    plain = document(*asked, "-k", 30)
    radius = plain["distances"][0][9]
    within = document(*asked, "--radius", radius)
    assert within["lims"][1] == 10
    assert within["ids"][:10] == plain["ids"][0][:10]
    assert within["limited"] == [False] * 4
    assert document(*asked, "--radius", "inf", "--limit", 7)["limited"] == [True] * 4
    document(*asked, "--radius", radius, "--output", tmp_path / "near.npz")
    assert np.load(tmp_path / "near.npz")["lims"].tolist() == within["lims"]
    assert run(*asked, "--radius", radius).returncode == 0
    # However many lie within, a query prints 20 lines and one for the rest.
    assert len(run(*asked, "--radius", "inf", "--show", 1).stdout.splitlines()) < 32
    quiet = document(*asked, "--show", 0)
    assert not {"ids", "distances"} & set(quiet)
    assert quiet["queries"] == 4


def test_a_radius_with_many_hits(sample: Any, sample_path: Path, tmp_path: Path) -> None:
    """With defaults: 10,000 hits are more than one search brings."""
    np.save(tmp_path / "one.npy", sample.queries[:1])
    told = document("search", sample_path, tmp_path / "one.npy", "--radius", "inf")
    assert told["lims"] == [0, 10_000]
    assert told["limited"] == [True]
    assert len(set(told["ids"])) == 10_000
    assert np.shape(document("search", sample_path, tmp_path / "one.npy", "-k", 5000)["ids"]) == (1, 5000)


@pytest.mark.parametrize("suffix", [".npz", ".parquet", ".arrow"])
def test_search_writes_results(suffix: str, built: Path, files: Path, tmp_path: Path) -> None:
    path = tmp_path / f"found{suffix}"
    told = document("search", built, files / "queries.npy", "-k", 4, "--output", path)
    assert "ids" not in told
    if suffix == ".npz":
        assert np.load(path)["ids"].shape == (50, 4)
    elif suffix == ".parquet":
        assert pq.read_table(path).num_rows == 200
    else:
        assert pa.ipc.open_file(path).read_all().column_names == ["query", "rank", "id", "distance"]


def test_both_devices(built: Path, files: Path) -> None:
    found = {
        io: run("search", built, files / "queries.npy", "--io", io, "--json") for io in ("uring", "threads")
    }
    if found["uring"].returncode:
        pytest.skip(f"LOUD: io_uring is refused here: {found['uring'].stderr}")
    told = {io: json.loads(done.stdout) for io, done in found.items()}
    assert told["uring"]["device"] == "uring"
    assert told["threads"]["device"] == "threads"
    assert told["uring"]["ids"] == told["threads"]["ids"]


def test_info(built: Path) -> None:
    told = document("info", built, "--memory", "30%")
    assert told["n"] == 2_000
    assert told["memory_budget_bytes"] == 2_000 * 24 * 4 * 3 // 10
    shown = run("info", built)
    for word in ("codes", "links", "pages.bin", "B a vector", "float32"):
        assert word in shown.stdout


def test_verify(built: Path, tmp_path: Path) -> None:
    assert document("verify", built)["sound"]
    assert "sound" in run("verify", built).stdout
    bad = Path(shutil.copytree(built, tmp_path / "bad"))
    whole = bytearray((bad / "pages.bin").read_bytes())
    whole[len(whole) // 2] ^= 4
    (bad / "pages.bin").write_bytes(whole)
    done = program("verify", bad)
    assert done.returncode == 3
    assert done.stderr.startswith("velo: page ")
    assert done.stderr.count("\n") == 1
    told = json.loads(run("verify", bad, "--json").stdout)["error"]
    assert (told["type"], told["file"]) == ("CorruptIndexError", "pages.bin")
    assert told["page"] >= 0


def test_doctor(tmp_path: Path) -> None:
    told = document("doctor", tmp_path)
    assert told["device"]["name"] in ("uring", "threads")
    assert told["device"]["reason"]
    assert told["library"]["cpu_level"]
    assert told["library"]["build_mode"] == "ReleaseSafe"  # as it ships
    assert os.listdir(tmp_path) == []
    shown = run("doctor")
    assert told["library"]["path"] in shown.stdout
    assert told["device"]["reason"] in shown.stdout


def test_doctor_without_a_library(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "velo", "doctor"],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        env=environment() | {"VELO_LIBRARY": str(tmp_path / "none.so")},
    )
    assert done.returncode == 1
    assert "none.so" in done.stdout
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        ("info", "nowhere"),
        ("verify", "nowhere"),
        ("build", "nowhere.fbin", "i"),
        ("build", "{files}/base.fbin", "nowhere/at/all"),
        ("build", "{files}/base.fbin", "i", "--metric", "euclid"),
        ("build", "{files}/base.fbin", "i", "--ids-column", "name"),
        ("build", "{files}/base.fbin", "i", "--build-memory", "1KiB"),
        ("build", "{files}/labels.parquet", "i"),
        ("search", "{built}", "nowhere.npy"),
        ("search", "{built}", "{files}/queries.npy", "--filter", "{not json"),
        ("search", "{built}", "{files}/queries.npy", "--filter", '{"colour": 1}'),
        ("search", "{built}", "{files}/queries.npy", "--group-by", "colour"),
        ("search", "{built}", "{files}/queries.npy", "--group-by", "label", "--radius", "1"),
        ("search", "{built}", "{files}/queries.npy", "--radius", "1", "--explain"),
        ("search", "{built}", "{files}/queries.npy", "--filter", "price < 1; DROP TABLE x"),
        ("search", "{built}", "{files}/queries.npy", "--memory", "lots"),
        ("search", "{built}", "{files}/queries.npy", "--io", "fast"),
        ("search", "{built}", "{files}/queries.npy", "-k", "0"),
        ("search", "{built}", "{files}/queries.npy", "--output", "x.txt"),
        ("serve", "nowhere", "--port", "0"),
    ],
)
def test_errors_are_one_line(
    arguments: tuple[str, ...], built: Path, files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    given = [one.replace("{built}", str(built)).replace("{files}", str(files)) for one in arguments]
    done = run(*given)
    assert done.returncode == 1, done
    assert done.stderr.startswith("velo: ")
    assert done.stderr.count("\n") == 1
    assert done.stdout == ""
    told = json.loads(run(*given, "--json").stdout)["error"]
    assert done.stderr == f"velo: {told['message']}\n"
    assert [entry for entry in tmp_path.iterdir() if (entry / "manifest.json").exists()] == []


def test_an_interrupt_is_130(files: Path, tmp_path: Path) -> None:
    write_vectors(tmp_path / "large.fbin", synthetic_vectors(40_000, 64))
    process = subprocess.Popen(
        [sys.executable, "-m", "velo", "build", tmp_path / "large.fbin", tmp_path / "i", "--degree", "64"],
        stderr=subprocess.PIPE,
        text=True,
        env=environment(),
    )
    while not (tmp_path / "i" / "codes.work").exists():
        assert process.poll() is None
    process.send_signal(signal.SIGINT)
    _, told = process.communicate(timeout=120)
    assert process.returncode == 130
    assert told.startswith("velo: interrupted: the work of this build stays in ")
    assert told.endswith("the same call goes on from there\n")
    assert (tmp_path / "i" / "building").exists()


def test_serve_answers_and_stops(built: Path) -> None:
    pytest.importorskip("fastapi", reason="the serving extra is not installed")
    process = subprocess.Popen(
        [sys.executable, "-m", "velo", "serve", str(built), "--port", "0", "--json"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(),
    )
    try:
        assert process.stdout is not None
        url = json.loads(process.stdout.readline())["url"]
        with urllib.request.urlopen(f"{url}/readyz", timeout=30) as answer:
            assert answer.status == 200
    finally:
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=60)
    assert process.returncode in (0, 130)


def test_demo(monkeypatch: pytest.MonkeyPatch) -> None:
    """Over every tenth row of its sample: a build of all takes seconds."""
    whole = demo._sample()
    assert (whole.base.shape, whole.queries.shape) == ((20_000, 128), (200, 128))
    base, labels = whole.base[::10], whole.labels.take(np.arange(0, 20_000, 10))
    asked = np.asarray(whole.asked[whole.label])
    passing = np.asarray(labels[whole.label]) == asked[:, None]
    few = dataclasses.replace(
        whole,
        base=base,
        labels=labels,
        truth=brute_force(base, whole.queries, 10).ids,
        truth_filtered=brute_force(base, whole.queries, 10, mask=passing).ids,
    )
    monkeypatch.setattr(demo, "_sample", lambda: few)
    done = run("demo", "--json")
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    plain, filtered, late = told["searches"]
    assert plain["recall"] >= 0.95
    assert filtered["recall"] >= 0.90
    assert filtered["reads"] < late["reads"]
    shown = run("demo")
    assert "recall@10" in shown.stdout
    assert "no filter" in shown.stdout
    assert "within the budget" in shown.stdout


def test_delete(tmp_path: Path) -> None:
    vectors = np.random.default_rng(5).normal(size=(300, 8)).astype(np.float32)
    index = tmp_path / "a.velo"
    table = pa.table({"number": np.arange(300) % 3})
    velo.build(index, vectors, metadata=table, threads=1, calibrate=False).close()
    assert document("delete", index, "--ids", "1, 2,900") == {
        "path": str(index),
        "deleted": 2,
        "missing": 1,
        "rows": 298,
        "sequence": 1,
    }
    done = run("delete", index, "--filter", "number = 0")
    assert "100 rows deleted; 198 are left" in done.stdout
    assert run("delete", index, "--filter", '{"number": 0}').stdout.count(" 0 rows deleted") == 1
    (tmp_path / "ids.txt").write_text("4\n5\n")
    assert document("delete", index, "--ids", f"@{tmp_path / 'ids.txt'}")["deleted"] == 2
    assert document("info", index)["live"]["dead"] == 104
    assert "104 rows" in run("info", index).stdout
    assert document("verify", index)["sound"]
    assert document("metadata", "show", index)["columns"][0]["name"] == "number"
    pq.write_table(table, tmp_path / "table.parquet")
    refused = run("metadata", "set", index, tmp_path / "table.parquet")
    assert "cannot be exchanged" in refused.stderr
    for wrong in ((), ("--ids", "1", "--filter", "number = 1"), ("--ids", "x"), ("--ids", "@/nowhere")):
        refused = run("delete", index, *wrong)
        assert refused.returncode == 1, refused.stdout
        assert refused.stderr.count("\n") == 1
