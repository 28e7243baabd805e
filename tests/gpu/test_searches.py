"""``velo.open(..., device=…)`` over simulated GPUs: same answers, typed errors, the CPU where they fail."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import velo
from velo.options import gpu_code

Program = Callable[..., list[Any]]


def test_names_of_devices() -> None:
    assert [gpu_code(name) for name in ("auto", "cpu", "cuda", "cuda:0", "cuda:1")] == [-1, 0, 1, 1, 2]
    for name in ("gpu", "cuda:", "cuda:-1", "cuda:x", "cuda:9999", "", None, 0):
        with pytest.raises(velo.InvalidArgumentError, match="device must be"):
            gpu_code(name)


def test_no_driver_is_an_error_that_names_its_library(sample_path: Path, monkeypatch: Any) -> None:
    """Of this machine, or of one with a GPU where none is visible."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    with pytest.raises(velo.GpuError, match=r"libcuda\.so\.1|CUDA_VISIBLE_DEVICES") as caught:
        velo.open(sample_path, device="cuda")
    assert caught.value.argument == "device"
    with velo.open(sample_path, device="auto") as index:
        gpu = index.info()["gpu"]
        assert gpu["state"] == "cpu"
        assert "libcuda.so.1" in gpu["reason"] or "CUDA_VISIBLE_DEVICES" in gpu["reason"]
    with velo.open(sample_path) as index:
        assert index.info()["gpu"] is None


def test_answers_are_those_of_the_cpu(on_gpu: Program) -> None:
    """Blocking and awaited; plain, exact, filtered and in groups; lists of several lengths."""
    told = on_gpu(
        """
        import asyncio
        gpus()
        ways = {
            "plain": {}, "long": {"list_size": 300}, "recall": {"recall": 0.95}, "exact": {"exact": True},
            "all": {"recall": 1.0}, "gate": {"filter": {"uniform10": {"$lt": 8}}},
            "late": {"filter": {"uniform10": {"$lt": 9}}, "tuning": velo.SearchTuning(filter_plan="late")},
            "few": {"filter": {"uniform10": 3}}, "too long": {"list_size": 2000},
        }
        with velo.open(path, threads=2) as cpu, velo.open(path, threads=2, device="cuda") as gpu:
            for name, how in ways.items():
                before = gpu.info()["gpu"]["queries"]
                expected = cpu.search(queries, 10, **how)
                found = gpu.search(queries, 10, **how)
                awaited = asyncio.run(gpu.search_async(queries, 10, **how))
                assert (found.ids == awaited.ids).mean() > 0.99
                pages = [
                    int(sum(one.stats[kind].sum() for kind in ("reads", "cache_hits", "shared_reads")))
                    for one in (expected, found)
                ]
                say(name, shared(expected.ids, found.ids), pages, gpu.info()["gpu"]["queries"] - before)
        """
    )
    queries_of = {}
    for name, same, (expected, found), queries in told:
        queries_of[name] = queries
        assert same >= (0.999 if name in ("exact", "all", "few") else 0.995), name
        assert abs(found - expected) <= 0.02 * expected, name
    assert {name for name, count in queries_of.items() if count == 0} == {"all", "few", "too long"}
    assert {count for count in queries_of.values() if count} == {1200}


def test_small_calls_stay_on_the_cpu_and_large_ones_are_cut(on_gpu: Program) -> None:
    """Calls of no query, of one, just below the crossover, and of many."""
    told = on_gpu(
        """
        gpus()
        with velo.open(path, threads=2, device="cuda:1") as index:
            for count in (0, 1, 63, 64, 9000):
                found = index.search(np.resize(queries, (count, queries.shape[1])), 5)
                assert found.ids.shape == (count, 5)
                say([count, index.info()["gpu"]["batches"]])
            gpu = index.info()["gpu"]
            enough = gpu["resident_bytes"] > 20_000 * 69
            say(gpu["name"], gpu["ordinal"], gpu["state"], enough, gpu["failed_queries"])
            say(str(index.explain(queries[0], 5)))
        """
    )
    assert told[:4] == [[0, 0], [1, 0], [63, 0], [64, 1]]
    assert told[4] == [9000, 9]
    assert told[5] == ["Simulated GPU 1", 1, "ready", True, 0]
    assert "gpu         Simulated GPU 1, for calls of many queries; this single one" in told[6]


def test_a_memory_mapped_call_of_many_queries_takes_the_memory_of_two_batches(
    on_gpu: Program, tmp_path: Path
) -> None:
    """Device memory has no room for a third; ten million queries are batches of this kind (zig/src/sim)."""
    told = on_gpu(
        """
        np.save(sys.argv[3], np.resize(queries, (16_000, queries.shape[1])))
        asked = np.load(sys.argv[3], mmap_mode="r")
        gpus()
        with velo.open(path, threads=2, device="cuda") as index:
            before = free()
            expected = index.search(asked, 1, list_size=10)
            taken_bytes, resident = before - free(), index.info()["gpu"]["resident_bytes"]
        gpus(memory_bytes=resident + taken_bytes)
        with velo.open(path, threads=2, device="cuda") as index:
            found = index.search(asked, 1, list_size=10)
            gpu = index.info()["gpu"]
            say(taken_bytes > 0, gpu["batches"], gpu["queries"], gpu["failed_queries"], free())
        assert shared(expected.ids, found.ids) > 0.99
        """,
        arguments=(tmp_path / "queries.npy",),
    )
    assert told == [[True, 8, 16_000, 0, 0]]


def test_typed_errors(on_gpu: Program) -> None:
    """An old driver, no GPU, a wrong number, a kernel that does not compile.

    Too little memory: other processes have it from the beginning, or take it between check and allocation.
    """
    told = on_gpu(
        """
        for world, device in (
            ({"version": 10020}, "cuda"), ({"devices": 0}, "cuda"), ({}, "cuda:2"),
            ({"memory_bytes": 1 << 30, "others_bytes": (1 << 30) - (1 << 20)}, "cuda"),
            ({"fail_call": 1, "failure": 2, "function": "cuMemAlloc"}, "cuda"),
            ({"fail_call": 1, "failure": 218, "function": "cuModuleLoadDataEx"}, "cuda"),
        ):
            gpus(**world)
            try:
                velo.open(path, device=device)
            except velo.GpuError as error:
                say([error.message, error.needed_bytes])
            gpus(**world)
            with velo.open(path, device="auto") as index:
                if index.info()["gpu"]["state"] != "ready":
                    say([index.info()["gpu"]["reason"]])
                assert index.search(queries, 10).ids.shape == (600, 10)
        """
    )
    by_cuda = [one for one in told if len(one) == 2]
    assert len(by_cuda) == 6
    for (message, _), words in zip(
        by_cuda,
        (
            "CUDA 10.2; velo needs 11.0",
            "CUDA_VISIBLE_DEVICES",
            "no GPU 2: the driver sees 2",
            "has 1048576 free of 1073741824",
            "are needed",
            "did not compile",
        ),
        strict=True,
    ):
        assert words in message
    assert by_cuda[3][1] > 1 << 20
    assert len([one for one in told if len(one) == 1]) == 5  # "auto" asks for the first, which is there


@pytest.mark.parametrize(
    "function", ["cuLaunchKernel", "cuEventSynchronize", "cuMemcpyHtoDAsync", "cuEventRecord"]
)
def test_a_lost_gpu_is_reported_once_and_the_cpu_answers(on_gpu: Program, function: str) -> None:
    told = on_gpu(
        f"""
        warnings.simplefilter("always")
        with velo.open(path, threads=2) as index:
            expected = index.search(queries, 10).ids
        gpus(lost_from=12, function={function!r})
        with velo.open(path, threads=2, device="cuda") as index:
            with warnings.catch_warnings(record=True) as said:
                for _ in range(12):
                    found = index.search(queries, 10)
                    assert shared(expected, found.ids) > 0.995
            gpu = index.info()["gpu"]
            say([one.category.__name__ for one in said], str(said[0].message))
            say(gpu["state"], gpu["failed_queries"], gpu["reason"])
        """
    )
    [[categories, message], [state, failed, reason]] = told
    assert categories == ["GpuWarning"]
    assert "Simulated GPU 0 failed; the CPU has answered its queries" in message
    assert state == "lost"
    assert failed in (300, 600)  # one batch of the two, or both
    assert "CUDA_ERROR_LAUNCH_FAILED" in reason


def test_memory_that_runs_out_passes(on_gpu: Program) -> None:
    told = on_gpu(
        """
        gpus(fail_call=2, failure=2, function="cuMemHostAlloc")
        with velo.open(path, threads=2, device="cuda") as index:
            states = []
            for _ in range(2):
                index.search(queries, 10)
                gpu = index.info()["gpu"]
                states.append([gpu["state"], gpu["failed_queries"]])
        say(states)
        """
    )
    assert told == [[["ready", 300], ["ready", 300]]]


def test_two_indexes_share_a_gpu_and_give_it_back(on_gpu: Program) -> None:
    told = on_gpu(
        """
        gpus()
        def free():
            info = _native.new("velo_gpu_info")
            _native.check(_native.lib.velo_gpu_probe(0, info))
            return info.free_bytes, info.count
        before = free()
        first, second = velo.open(path, device="cuda"), velo.open(path, device="cuda:0")
        for one in (first, second):
            one.search(queries, 10)
        say([before[1], second.info()["gpu"]["batches"], free()[0] < before[0]])
        first.close()
        second.search(queries, 10)
        second.close()
        say(free() == before)
        """
    )
    assert told == [[2, 4, True], True]


def test_two_processes_have_copies_of_their_own(on_gpu: Program) -> None:
    """At the same time, over the same index; forked before either used the GPU, or looked for one in vain."""
    told = on_gpu(
        """
        import os
        gpus(version=10020)
        velo.open(path, device="auto").close()
        child = os.fork()
        gpus(others_bytes=1 << 20)
        with velo.open(path, threads=2, device="cuda") as index:
            found = index.search(queries, 10)
            gpu = index.info()["gpu"]
            say(gpu["state"], gpu["queries"], gpu["resident_bytes"], found.ids[:, 0].tolist())
        sys.stdout.flush()
        if child == 0:
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        """
    )
    assert len(told) == 2
    assert told[0] == told[1]
    assert told[0][:2] == ["ready", 600]


def test_a_fork_of_a_process_with_a_gpu(on_gpu: Program) -> None:
    """Neither the index of its parent nor a GPU of its own, of builds and of tuning either."""
    told = on_gpu(
        """
        import os
        gpus()
        index = velo.open(path, device="cuda")
        index.search(queries, 10)
        child = os.fork()
        if child == 0:
            said = []
            for call in (
                lambda: index.search(queries, 10),
                lambda: velo.open(path, device="cuda"),
                lambda: velo.build(path + ".new", queries, device="cuda"),
                lambda: velo.tune(np.tile(queries, (2, 1)), device="cuda"),
            ):
                try:
                    call()
                except velo.ForkedError as error:
                    said.append(error.message)
            with velo.open(path, device="auto") as own:
                own.search(queries, 10)
                said.append(own.info()["gpu"]["state"])
            said.append(os.path.exists(path + ".new"))
            index.close()
            say(said)
            sys.stdout.flush()
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        index.close()
        """
    )
    [[of_index, *of_gpu, state, is_touched]] = told
    assert "was opened in process" in of_index
    assert len(of_gpu) == 3
    assert all("CUDA does not work in its forks" in one for one in of_gpu)
    assert state == "cpu"
    assert not is_touched


def test_new_segments_of_a_live_index_are_uploaded(on_gpu: Program, tmp_path: Path) -> None:
    """The delta is answered by the CPU in the same call; deleted rows are in no answer."""
    told = on_gpu(
        """
        gpus()
        rows = open_vectors(sys.argv[2]).read().astype(np.float32)
        rng = np.random.default_rng(3)
        vectors = rng.standard_normal((6000, 32), dtype=np.float32)
        asked = rng.standard_normal((300, 32), dtype=np.float32)
        velo.build(path, vectors[:3000], store_vectors=True, threads=2).close()
        with velo.open(path, writable=True, threads=2, device="cuda") as index:
            uploaded = [index.info()["gpu"]["resident_bytes"]]
            index.insert(vectors[3000:4000])
            index.flush()
            index.insert(vectors[4000:4100])
            uploaded.append(index.info()["gpu"]["resident_bytes"])
            before = index.info()["gpu"]["queries"]
            index.delete(np.arange(100))
            gate = velo.SearchTuning(filter_plan="gate")  # a scan of so few rows is cheaper
            found = index.search(asked, 10, list_size=400, exact=True, tuning=gate)
            assert found.ids.min() >= 100
            living = np.arange(100, 4100)
            distances = ((asked[:, None] - vectors[living][None]) ** 2).sum(-1)
            truth = living[np.argsort(distances, axis=1)[:, :10]]
            navigated = index.info()["gpu"]["queries"] - before
            say(uploaded[1] > uploaded[0] > 0, navigated, shared(truth, found.ids))
        """,
        path=tmp_path / "live.velo",
    )
    [[uploaded, queries, recall]] = told
    assert uploaded
    assert queries == 300
    assert recall > 0.97


def test_bench_runs_over_a_simulated_gpu(on_gpu: Program, root: Path, tmp_path: Path) -> None:
    """The script that a machine with a GPU runs, section by section, and cut short where time is."""
    program = """
        gpus()
        from bench.__main__ import main
        small = "gpu --rows 2000 --cases 150 --shapes 3 --largest-call 300 --threads 2".split()
        sys.argv = ["bench", *small, "--seconds", sys.argv[3], "--out", sys.argv[4]]
        sys.stdout = sys.stderr
        main()
    """
    for seconds, wanted in (("200", "4 build"), ("0.001", "machine")):
        out = tmp_path / f"{seconds}.json"
        on_gpu(program, arguments=(seconds, out), cwd=root)
        lines = json.loads(out.read_text())
        assert lines[0]["gpu"] == "Simulated GPU 0, compute 9.0, driver for CUDA 12.4"
        assert [one for one in lines if one["verdict"] == "differs"] == []
        assert wanted in {one["section"] for one in lines if one["gpu"]}
        cut = any(word in one["what"] for one in lines for word in ("cut off", "not reached"))
        assert cut == (seconds != "200")
