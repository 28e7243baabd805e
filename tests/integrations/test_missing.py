"""Without its framework a module says what to install, and velo itself imports none of them."""

from __future__ import annotations

import subprocess
import sys

import pytest

MODULES = {"langchain": "langchain_core", "haystack": "haystack", "llama_index": "llama_index"}


@pytest.mark.parametrize("name", MODULES)
def test_a_framework_that_is_not_there(name: str) -> None:
    program = f"""
import sys
sys.modules[{MODULES[name]!r}] = None
import velo.errors
try:
    import velo.integrations.{name}
except velo.errors.MissingDependencyError as error:
    assert isinstance(error, ImportError)
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert f"pip install 'veloann[{name.replace('_', '-')}]'" in done.stdout


def test_velo_imports_no_framework() -> None:
    program = "import sys, velo, velo.integrations, velo.cli; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert not set(MODULES.values()) & set(done.stdout.split())
    assert "velo.integrations.documents" not in done.stdout.split()
