"""The shipped library checks itself; what is freed of checks is a table that a measurement asked for."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import velo._native
from velo._native import loader

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "zig" / "src"

#: Debug keeps the checks, so that tests run with them.
FREE = "@setRuntimeSafety(builtin.mode == .Debug);"

#: Scopes without checks, a file: docs/decisions/0007 has the counts that asked for them.
FREED = {
    "base/cpu.zig": 1,
    "graph/placement.zig": 1,
    "graph/search.zig": 4,
    "layout/adjacency.zig": 4,
    "layout/links.zig": 2,
    "quant/build_codes.zig": 2,
    "quant/encode.zig": 2,
    "quant/product.zig": 2,
    "quant/query.zig": 2,
    "search/list.zig": 7,
    "search/query.zig": 4,
    "search/shared.zig": 1,
    "search/walk.zig": 1,
}


def test_only_what_was_measured_is_freed_of_checks() -> None:
    found: Counter[str] = Counter()
    for path in sorted(SOURCE.rglob("*.zig")):
        for number, line in enumerate(path.read_text().splitlines(), 1):
            if "@setRuntimeSafety" not in line:
                continue
            freed = line.strip().startswith(f"{FREE} // measured (decisions/0007)")
            assert freed, f"{path}:{number} frees a scope otherwise, or does not name the measurement"
            found[str(path.relative_to(SOURCE))] += 1
    assert dict(found) == FREED


def test_kernels_and_simulated_worlds_alone_are_compiled_in_another_mode() -> None:
    modes = [line for line in (ROOT / "build.zig").read_text().splitlines() if ".Release" in line]
    assert len(modes) == 3
    assert ".optimize = .ReleaseFast, // also in Debug builds" in modes[0]
    assert ".optimize = .ReleaseSmall, // without checks" in modes[1]  # of GPUs
    assert "shipped.optimize = .ReleaseSafe; // as the library ships" in modes[2]


def test_the_library_that_is_loaded_checks_itself() -> None:
    velo._native.version()
    code = loader.library_path().read_bytes()
    for message in (b"integer overflow", b"index out of bounds", b"reached unreachable code"):
        assert message in code, f"{message!r} is not in the library: it was compiled without checks"
