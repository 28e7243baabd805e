"""Names of Zig tests: those that start threads say so."""

from __future__ import annotations

import re
from pathlib import Path


def test_zig_tests_that_start_threads_say_so_in_their_names(root: Path) -> None:
    """`zig build tsan` finds them by that word, in modules whose tests mostly have one thread."""
    build = (root / "build.zig").read_text(encoding="utf-8")
    modules = re.findall(r'\.name = "(\w+)", \.short = \w+, \.all_tests = (?:false|long) ', build)
    assert modules == ["cache", "filter", "graph", "live", "capi", "sim"]
    a_test = re.compile(r'^test "(.*?)" \{\n(.*?)^\}$', re.MULTILINE | re.DOTALL)
    for module in modules:
        found = 0
        for path in (root / "zig" / "src" / module).glob("*.zig"):
            for name, body in a_test.findall(path.read_text(encoding="utf-8")):
                found += "threads" in name
                assert "threads" in name or "Thread.spawn" not in body, f"{path.name}: {name}"
        assert found > 0, module
