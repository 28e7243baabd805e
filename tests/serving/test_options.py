"""How shards open is said at several doors: the same names, the same defaults at each."""

from __future__ import annotations

import dataclasses
import inspect
from typing import Any

import msgspec
import pytest

from tests.serving.conftest import SERVE_MARK
from velo_serving import Cluster, serve_local
from velo_serving.on_ray.actors import ActorOptions
from velo_serving.places.spec import ShardSpec

#: What a door may leave to another one.
OPENING = {"memory", "threads", "io", "plan", "writable", "durability"}
RUNNING = {"replicas", "pin"}


def defaults_of(door: Any) -> dict[str, Any]:
    """Its options that have a default."""
    if dataclasses.is_dataclass(door):
        return {one.name: one.default for one in dataclasses.fields(door)}
    if isinstance(door, type) and issubclass(door, msgspec.Struct):
        return {one.name: one.default for one in msgspec.structs.fields(door)}
    return {name: one.default for name, one in inspect.signature(door).parameters.items()}


def check(doors: dict[str, Any], names: set[str]) -> None:
    for name in names:
        values = {door: defaults_of(one)[name] for door, one in doors.items()}
        assert len(set(values.values())) == 1, f"{name}: {values}"


def test_every_door_opens_shards_alike() -> None:
    doors = {one.__name__: one for one in (ShardSpec, ActorOptions, serve_local)}
    check({**doors, "Cluster.start": Cluster.start}, OPENING)
    assert set(defaults_of(ActorOptions)) <= set(inspect.signature(Cluster.start).parameters)


@pytest.mark.filterwarnings(*SERVE_MARK.args)
def test_the_app_of_ray_serve_starts_actors_as_others_do() -> None:
    from velo_serving.on_ray.serve_app import ServeArgs

    check({"ServeArgs": ServeArgs, "Cluster.start": Cluster.start}, OPENING | RUNNING)
    told = set(defaults_of(ActorOptions)) - set(defaults_of(ServeArgs))
    # It reserves for gateways, not for shards, and its actors outlive it.
    assert told == {"num_cpus", "detached"}
