"""What serving may be asked for is said once: Python, Ray and the command line take it from there."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.serving.conftest import SERVE_MARK, invoked
from velo.cli.serve import serve as command
from velo.errors import InvalidArgumentError
from velo_serving import Cluster, ServeOptions, serve_connected, serve_local, serve_ray, start_ray
from velo_serving.catalog.spec import ShardSpec
from velo_serving.protocol.limits import GatewayLimits, RouterLimits

#: The doors, their own parameters apart, and the groups of options that each takes.
DOORS: list[tuple[Callable[..., Any], set[str]]] = [
    (serve_local, {"shards", "local", "gateway"}),
    (serve_ray, {"shards", "ray", "address", "gateway"}),
    (start_ray, {"shards", "ray", "address"}),
    (serve_connected, {"gateway", "address"}),
    (Cluster.start, {"shards", "ray"}),
]


def test_limits_of_the_command_line(monkeypatch: pytest.MonkeyPatch) -> None:
    given: dict[str, Any] = {}
    monkeypatch.setattr(
        "velo_serving.hosting.serve.serve_local", lambda paths, **options: given.update(options)
    )
    limits = ("--limit", "queue_wait_max_s=0.5", "--limit", "k_max=7", "--limit", "requests_max=9")
    assert invoked("serve", "shop.velo", *limits).returncode == 0
    assert given == {
        "limits": RouterLimits(queue_wait_max_s=0.5),
        "gateway_limits": GatewayLimits(k_max=7, requests_max=9),
    }
    for wrong, why in (("k=1", "'k' is none"), ("k_max=x", "'x' is no k_max"), ("k_max=0", "above zero")):
        ended = invoked("serve", "shop.velo", "--limit", wrong)
        assert (ended.returncode, why in ended.stderr) == (1, True), ended.stderr


@pytest.mark.parametrize(("door", "groups"), DOORS)
def test_a_door_shows_its_options_with_the_same_defaults(door: Callable[..., Any], groups: set[str]) -> None:
    shown = {
        name: one.default
        for name, one in inspect.signature(door).parameters.items()
        if one.kind is one.KEYWORD_ONLY
    }
    wanted = {one.name: one.default for one in ServeOptions.all_fields() if one.said.group in groups}
    assert shown == wanted
    assert len(shown) > 7


@pytest.mark.parametrize(("door", "groups"), DOORS)
def test_options_without_meaning_for_a_command_are_refused(
    door: Callable[..., Any], groups: set[str]
) -> None:
    given: dict[str, Any] = {
        "shards": {"replicas": 2},
        "ray": {"pin": "label:a=b"},
        "address": {"address": "auto"},
        "local": {"processes": True},
        "gateway": {"port": 1},
    }
    for group in given.keys() - groups:
        (name,) = given[group]
        with pytest.raises(InvalidArgumentError, match=f"^{name}|^ray-address") as caught:
            door("/nowhere", **given[group])
        assert caught.value.argument == name
    with pytest.raises(TypeError, match=r"unexpected keyword argument 'colour'"):
        door("/nowhere", colour=1)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("replicas", 0),
        ("workers", 0),
        ("ready_shards", 0),
        ("drain_s", -1.0),
        ("drain_s", float("nan")),
        ("slow_s", -1),
        ("threads", -1),
        ("durability", "never"),
        ("start_timeout_s", -1),
    ],
)
def test_an_option_that_cannot_be_is_named(name: str, value: Any) -> None:
    with pytest.raises(InvalidArgumentError, match=name) as caught:
        ServeOptions(**{name: value})
    assert caught.value.argument == name


def test_a_shard_opens_as_options_say() -> None:
    told = ShardSpec(name="0", path="x", **ServeOptions().opening)
    assert told == ShardSpec(name="0", path="x")


def test_the_command_has_an_option_for_each_that_has_a_word() -> None:
    shown = inspect.signature(command).parameters
    public = {one.name for one in ServeOptions.all_fields() if one.said.help}
    assert set(shown) - public == {"paths", "ray", "detached", "connect", "limit", "as_json"}
    assert public <= set(shown)
    hidden = {"num_cpus", "detached", "start_timeout_s", "on_progress", "on_ready"}
    hidden |= {"limits", "gateway_limits"}
    assert {one.name for one in ServeOptions.all_fields() if not one.said.help} == hidden
    for one in ServeOptions.all_fields():
        if one.name in public and one.default != ():
            assert shown[one.name].default == one.default, one.name


def test_options_sent_to_gateways_are_complete(tmp_path: Path) -> None:
    given = ServeOptions(api_keys=tmp_path / "keys", slow_s=0.5, cors_origins=["*"], workers=3, log_json=True)
    told = ServeOptions(**msgspec.json.decode(msgspec.json.encode(given.of_gateway)))
    assert (told.api_keys, told.slow_s, told.log_json) == (str(tmp_path / "keys"), 0.5, True)
    assert (list(told.cors_origins), told.workers) == (["*"], 1)


@pytest.mark.filterwarnings(*SERVE_MARK.args)
def test_the_app_of_ray_serve_takes_options_as_others_do() -> None:
    from velo_serving.on_ray.serve_app import _checked

    args = {"name": "films", "gateways": 2, "replicas": 2, "slow_s": 0.5, "cors_origins": ["*"]}
    own, options = _checked(args)
    assert (own.name, own.gateways, own.cpus, own.path) == ("films", 2, 1.0, None)
    assert options == ServeOptions(replicas=2, slow_s=0.5, cors_origins=("*",))
    for wrong in ({"replicas": 0}, {"replicas": "two"}, {"colour": 1}, {"detached": True}, {"port": 1}):
        with pytest.raises(InvalidArgumentError):
            _checked({"name": "films", **wrong})
