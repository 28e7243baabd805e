"""What may be imported by whom: the client works without Ray, the library without a server."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import velo_serving
from tests.serving.conftest import SERVE_MARK, python

PACKAGE = Path(velo_serving.__file__).parent
HEAVY = ("ray", "fastapi", "uvicorn", "httpx", "prometheus_client", "pydantic")


def test_each_name_imports_only_its_own_packages() -> None:
    """In one interpreter, from the import that needs least to the one that needs most."""
    web = {"fastapi", "pydantic", "prometheus_client"}
    expected = {
        "import velo": set(),
        "import velo_serving": set(),
        "from velo_serving import VectorSearch, open_local_backend, Router": set(),
        "from velo_serving import Client": {"httpx"},
        "from velo_serving import create_app": {"httpx"} | web,
        "from velo_serving import serve_ray": {"httpx", "uvicorn"} | web,
    }
    ended = python(
        "import sys\n"
        f"for statement in {list(expected)!r}:\n"
        "    exec(statement)\n"
        f"    print(*[name for name in {HEAVY!r} if name in sys.modules])"
    )
    assert ended.returncode == 0, ended.stderr
    for (statement, allowed), found in zip(expected.items(), ended.stdout.split("\n"), strict=False):
        assert set(found.split()) <= allowed, statement


def test_a_missing_package_is_named_with_its_remedy() -> None:
    ended = python(
        "import sys, velo_serving\n"
        "from velo.errors import MissingDependencyError\n"
        "for missing, name in (('ray', 'Cluster'), ('ray.serve', 'serve_app'), ('httpx', 'Client'),\n"
        "                      ('uvicorn', 'serve_local'), ('fastapi', 'serve_ray')):\n"
        "    sys.modules[missing] = None\n"
        "    try: getattr(velo_serving, name)\n"
        "    except MissingDependencyError as error: print(name, error)\n"
        "    del sys.modules[missing]"
    )
    assert ended.returncode == 0, ended.stderr
    told = ended.stdout.splitlines()
    assert [line.split()[0] for line in told] == [
        "Cluster",
        "serve_app",
        "Client",
        "serve_local",
        "serve_ray",
    ]
    for line in told:
        extra = "ray-serve" if line.startswith("serve_app") else "serving"
        assert f"pip install 'veloann[{extra}]'" in line


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


@SERVE_MARK
def test_all_public_names_exist() -> None:
    for name in velo_serving.__all__:
        assert getattr(velo_serving, name) is not None
    assert set(velo_serving.__all__) == set(dir(velo_serving))
    with pytest.raises(AttributeError):
        velo_serving.nothing  # noqa: B018
