"""``velo serve``: the way to :mod:`velo_serving`, which is loaded only here."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path
from typing import Any

from velo.errors import InvalidArgumentError, MissingDependencyError
from velo.options import in_range

__all__ = ["run"]


def run(
    paths: list[Path],
    *,
    ray: bool,
    ray_address: str | None,
    pin: str | None,
    processes: bool,
    as_json: bool,
    **options: Any,
) -> None:
    """Serve until interrupted."""
    if ray and len(paths) != 1:
        raise InvalidArgumentError("--ray serves one collection", argument="paths")
    if not ray and (ray_address is not None or pin is not None):
        raise InvalidArgumentError("--ray-address and --pin go with --ray", argument="ray")
    if ray and processes:
        raise InvalidArgumentError("give one of --ray and --processes", argument="processes")
    if (
        options["threads"] is not None
    ):  # here, for a shard that cannot be opened is served as one that is down
        in_range(options["threads"], "threads")
    needed = ["velo_serving.serve"] + (["velo_serving.ray_actors"] if ray else [])
    try:
        # By name: the core package neither needs nor knows the serving one.
        serve, *_ = [importlib.import_module(name) for name in needed]
    except ImportError as error:
        raise MissingDependencyError(
            f"serving needs packages that are not installed ({error}): pip install 'veloann[serving]'"
        ) from error
    if as_json:
        options["on_ready"] = _announce
    if ray:
        serve.serve_ray(paths[0], address=ray_address, pin=pin, **options)
    else:
        serve.serve_local(paths, processes=processes, **options)


def _announce(url: str) -> None:
    sys.stdout.write(json.dumps({"url": url}) + "\n")
    sys.stdout.flush()
