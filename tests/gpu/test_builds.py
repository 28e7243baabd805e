"""``velo.build(..., device=…)`` over simulated GPUs: as good an index; the CPU goes on where they fail."""

from __future__ import annotations

import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import velo

Program = Callable[..., list[Any]]

#: `build` makes an index of 3,000 rows at `path`; `asked` are queries.
DATA = """
    import os
    rng = np.random.default_rng(6)
    centers = rng.standard_normal((30, 32), dtype=np.float32)
    rows = centers[rng.integers(0, 30, 4000)] + rng.standard_normal((4000, 32), dtype=np.float32)
    rows, asked = rows[:3000], rows[3000:]

    def build(device, **how):
        how = {"threads": 1, "degree": 32, "calibrate": False, "overwrite": True} | how
        velo.build(path, rows, device=device, **how).close()

    def warnings_of(call):
        with warnings.catch_warnings(record=True) as heard:
            warnings.simplefilter("always")
            call()
        return [[one.category.__name__, str(one.message)] for one in heard]

    def search(list_size):
        with velo.open(path, threads=1) as index:
            return index.search(asked, 10, list_size=list_size)

    def recall():
        distances = ((asked[:, None] - rows[None]) ** 2).sum(-1)
        return shared(np.argsort(distances, axis=1)[:, :10], search(40).ids)
"""


@pytest.fixture
def building(on_gpu: Program, tmp_path: Path) -> Program:
    """The output of a program that begins with `DATA`."""

    def run(program: str) -> list[Any]:
        return on_gpu(textwrap.dedent(DATA) + textwrap.dedent(program), tmp_path / "built.velo")

    return run


@pytest.mark.parametrize("metric", ["l2", "ip"])
def test_recall_and_reads_are_those_of_a_build_by_the_cpu(building: Program, metric: str) -> None:
    """At equal lists."""
    told = building(
        f"""
        gpus()
        products = asked @ rows.T
        scores = products if {metric!r} == "ip" else 2 * products - (rows**2).sum(1)
        nearest = np.argsort(-scores, axis=1)[:, :10]
        before = free()
        for device in ("cpu", "cuda:1"):
            assert warnings_of(lambda: build(device, metric={metric!r})) == []
            for list_size in (20, 40):
                found = search(list_size)
                pages = sum(found.stats[kind].sum() for kind in ("reads", "cache_hits", "shared_reads"))
                say(shared(nearest, found.ids), int(pages))
        assert free() == before
        """
    )
    for (recall, pages), (expected_recall, expected_pages) in zip(told[2:], told[:2], strict=True):
        assert recall >= expected_recall - 0.002
        assert pages <= 1.02 * expected_pages
    assert told[:2] != told[2:]


def test_one_thread_makes_the_same_graph_again(building: Program) -> None:
    told = building(
        """
        gpus()
        for device in ("cuda", "cuda:1"):
            build(device)
            say(search(20).distances.tolist())
        """
    )
    assert told[0] == told[1]


def test_builds_in_partitions_and_of_collections(building: Program) -> None:
    """Each graph has walks of its own, so partitions make more of them."""
    told = building(
        """
        for how in ({}, {"build_memory": "60%"}):
            gpus(lost_from=20, function="cuLaunchKernel")
            say(warnings_of(lambda: build("cuda", **how)))
            assert recall() > 0.9
        gpus()
        before = free()
        options = {"shards": 2, "degree": 16, "calibrate": False}
        velo.build_collection(path + ".collection", rows, device="cuda", **options)
        say(free() == before)
        """
    )
    whole, partitions, is_given_back = told
    assert whole == []
    assert [one[0] for one in partitions] == ["GpuWarning"]
    assert is_given_back


def test_a_gpu_that_is_lost_in_a_build_is_reported_once_and_the_cpu_goes_on(building: Program) -> None:
    """Whatever call fails first, and for good."""
    told = building(
        """
        for function, number in (
            ("cuMemAlloc", 1), ("cuMemAlloc", 4), ("cuMemcpyHtoDAsync", 1), ("cuMemcpyHtoDAsync", 7),
            ("cuLaunchKernel", 1), ("cuLaunchKernel", 3), ("cuStreamSynchronize", 5),
            ("cuMemcpyDtoHAsync", 2),
        ):
            gpus(lost_from=number, function=function)
            said = warnings_of(lambda: build("cuda"))
            say([one[0] for one in said], said[0][1], recall())
        """
    )
    assert len(told) == 8
    for categories, message, recall in told:
        assert categories == ["GpuWarning"]
        assert "Simulated GPU 0 failed; the CPU has linked the other vertices: cu" in message
        assert "CUDA_ERROR_LAUNCH_FAILED" in message
        assert recall > 0.9


def test_whichever_call_fails_nothing_stays_on_the_gpu(building: Program) -> None:
    """An error before the build begins, a warning after that."""
    told = building(
        """
        errors = warned = 0
        for number in (*range(1, 40, 4), 60, 90):
            gpus(fail_call=number, failure=999)
            try:
                warned += len(warnings_of(lambda: build("cuda")))
            except velo.GpuError:
                errors += 1
            gpus()
        say(errors, warned)
        """
    )
    [[errors, warned]] = told
    assert errors >= 2
    assert warned >= 4


def test_lack_of_device_memory(building: Program) -> None:
    """It is an error before a folder is touched, and a warning where it comes later; "auto" needs none."""
    told = building(
        """
        gpus(memory_bytes=1 << 20)
        try:
            build("cuda")
        except velo.GpuError as error:
            say(error.argument, error.message, error.needed_bytes, os.path.exists(path))
        say(warnings_of(lambda: build("auto")))
        gpus(fail_call=3, failure=2, function="cuMemAlloc")
        say(warnings_of(lambda: build("cuda")))
        assert recall() > 0.9
        """
    )
    argument, message, needed, is_there = told[0]
    assert (argument, is_there) == ("device", False)
    assert "of device memory; Simulated GPU 0 has 1048576 free of 1048576" in message
    assert needed > 3000 * (32 + 12 + 128)
    assert told[1] == []
    [[category, message]] = told[2]
    assert category == "GpuWarning"
    assert "are needed" in message


def test_errors_come_before_a_folder_is_touched(building: Program) -> None:
    """An old driver, no visible GPU, a wrong number."""
    told = building(
        """
        for world, device in (({"version": 10020}, "cuda"), ({"devices": 0}, "cuda"), ({}, "cuda:2")):
            gpus(**world)
            try:
                build(device)
            except velo.GpuError as error:
                say(error.argument, error.message, os.path.exists(path))
        """
    )
    for (argument, message, is_there), words in zip(
        told,
        ("CUDA 10.2; velo needs 11.0", "CUDA_VISIBLE_DEVICES", "no GPU 2: the driver sees 2"),
        strict=True,
    ):
        assert (argument, is_there) == ("device", False)
        assert words in message


def test_a_live_index_with_a_gpu_links_its_flushes_on_it(building: Program) -> None:
    """Without the GPU, where it is lost or has no room, the CPU links; a lost one is reported."""
    told = building(
        """
        def live(**world):
            velo.build(path, rows[:200], store_vectors=True, calibrate=False, overwrite=True).close()
            gpus(**world)
            with velo.open(path, writable=True, threads=1, device="cuda") as index:
                index.insert(rows[200:])
                said = warnings_of(index.flush)
                index.optimize()
            say([one[0] for one in said], [one[1] for one in said], recall())

        gpus()
        before = free()
        live()
        say(free() == before)
        live(lost_from=2, function="cuLaunchKernel")
        live(memory_bytes=8 << 20)
        """
    )
    (quiet, _, recall), is_given_back, (categories, [message], of_lost), (none, _, of_full) = told
    assert quiet == none == []
    assert is_given_back
    assert categories == ["GpuWarning"]
    assert "Simulated GPU 0 failed; the CPU has linked the other vertices" in message
    assert min(recall, of_lost, of_full) > 0.9


def test_long_lists_stay_on_the_cpu(building: Program) -> None:
    told = building(
        """
        gpus()
        for device in ("cuda", "auto"):
            say(warnings_of(lambda: build(device, build_list_size=600)))
        """
    )
    [[category, message]] = told[0]
    assert category == "GpuWarning"
    assert "Simulated GPU 0 was not used for the build: its candidate lists" in message
    assert told[1] == []


def test_no_driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of this machine, or of one with a GPU where none is visible."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    rows = np.random.default_rng(1).standard_normal((600, 16), dtype=np.float32)
    path = tmp_path / "built.velo"
    with pytest.raises(velo.GpuError, match=r"libcuda\.so\.1|CUDA_VISIBLE_DEVICES") as caught:
        velo.build(path, rows, device="cuda")
    assert caught.value.argument == "device"
    assert not path.exists()
    velo.build(path, rows, device="auto").close()
    with pytest.raises(velo.InvalidArgumentError, match="device must be"):
        velo.build(path, rows, device="gpu")
