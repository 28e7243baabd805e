"""What may be imported by whom: the client works without Ray, the library without a server."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import velo_serving
from tests.serving.conftest import SERVE_MARK

PACKAGE = Path(velo_serving.__file__).parent
HEAVY = ("ray", "fastapi", "uvicorn", "httpx", "prometheus_client", "pydantic")


def python(code: str) -> subprocess.CompletedProcess[str]:
    """Run code in a fresh interpreter."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, env=environment, check=False
    )


@pytest.mark.parametrize(
    ("statement", "allowed"),
    [
        ("import velo", set()),
        ("import velo_serving", set()),
        ("from velo_serving import VectorSearch, open_local_backend, Router", set()),
        ("from velo_serving import Client", {"httpx"}),
        ("from velo_serving import create_app", {"fastapi", "pydantic", "prometheus_client"}),
        ("from velo_serving import serve_ray", {"fastapi", "pydantic", "prometheus_client", "uvicorn"}),
    ],
)
def test_nothing_heavy_comes_along(statement: str, allowed: set[str]) -> None:
    ended = python(f"{statement}; import sys; print(*[name for name in {HEAVY!r} if name in sys.modules])")
    assert ended.returncode == 0, ended.stderr
    assert set(ended.stdout.split()) <= allowed


@pytest.mark.parametrize(
    ("missing", "name"),
    [("ray", "Cluster"), ("httpx", "Client"), ("uvicorn", "serve_local"), ("fastapi", "serve_ray")],
)
def test_a_missing_package_is_named_with_its_remedy(missing: str, name: str) -> None:
    ended = python(
        f"import sys; sys.modules[{missing!r}] = None\n"
        f"import velo_serving\nfrom velo.errors import MissingDependencyError\n"
        f"try: velo_serving.{name}\n"
        "except MissingDependencyError as error: print(error)"
    )
    assert ended.returncode == 0, ended.stderr
    assert "pip install 'veloann[serving]'" in ended.stdout


def test_one_file_knows_ray_and_one_ray_serve() -> None:
    lines = {
        path.relative_to(PACKAGE).as_posix(): re.findall(
            r"^\s*(?:import|from) ray\b.*", path.read_text(), re.M
        )
        for path in PACKAGE.rglob("*.py")
    }
    importing = {name: [line.strip() for line in found] for name, found in lines.items() if found}
    assert set(importing) == {"on_ray/actors.py", "on_ray/serve_app.py"}
    assert importing["on_ray/serve_app.py"] == ["from ray import serve"]


def test_a_missing_ray_serve_is_named_with_its_remedy() -> None:
    ended = python(
        "import sys; sys.modules['ray.serve'] = None\n"
        "import velo_serving\nfrom velo.errors import MissingDependencyError\n"
        "try: velo_serving.serve_app\n"
        "except MissingDependencyError as error: print(error)"
    )
    assert ended.returncode == 0, ended.stderr
    assert "pip install 'veloann[ray-serve]'" in ended.stdout


@SERVE_MARK
def test_all_public_names_exist() -> None:
    for name in velo_serving.__all__:
        assert getattr(velo_serving, name) is not None
    assert set(velo_serving.__all__) == set(dir(velo_serving))
    with pytest.raises(AttributeError):
        velo_serving.nothing  # noqa: B018
