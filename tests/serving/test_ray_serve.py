"""The gateway as an app of Ray Serve, for real; and the manifest for Kubernetes, held against the code."""

from __future__ import annotations

import asyncio
import inspect
import json
import os
import subprocess
import sys
import typing
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

import httpx
import msgspec
import numpy as np
import pytest
import yaml
from lightkube.models import core_v1

import velo
from tests.serving.conftest import LIST_SIZE, RAY_MARKS, local_answer
from velo.errors import VeloError
from velo_serving.catalog.collection import Pin
from velo_serving.on_ray.actors import places_of, ray
from velo_serving.on_ray.cluster import Cluster
from velo_serving.protocol.limits import GatewayLimits
from velo_serving.protocol.types import SearchRequest

ROOT = Path(__file__).parents[2]
MANIFEST = ROOT / "serving" / "deploy" / "velo-rayservice.yaml"

pytestmark = RAY_MARKS


@pytest.mark.long(guarded_by="tests/serving/test_ray_serve.py::test_the_app_is_made_of_its_arguments")
def test_gateways_of_serve_answer_over_the_actors_of_a_collection(tmp_path: Path) -> None:
    """In a process of its own, with a Ray of its own: Serve stays in what uses Ray after it."""
    vectors = np.random.default_rng(5).standard_normal((600, 16)).astype(np.float32)
    path = velo.build_collection(tmp_path / "photos.velo", vectors, shards=2, threads=1)
    queries = vectors[::40]
    np.save(tmp_path / "queries.npy", queries)
    ended = subprocess.run(
        [sys.executable, "-m", "tests.serving.ray_serve_program", str(path), str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
    )
    assert ended.returncode == 0, ended.stderr[-5000:]
    told = json.loads(ended.stdout.splitlines()[-1])
    expected = local_answer(path, SearchRequest(queries, 10, list_size=LIST_SIZE)).hits.ids
    assert told["ids"] == expected.tolist()
    assert (told["shards"], told["rows"]) == (2, 600)
    assert (told["without_key"], told["wrong"]) == ("ApiKeyError", "DimensionMismatchError")
    assert told["gateways"] == {"RUNNING": 2}
    assert told["after_a_kill"] == 2
    killed = told["gateway_killed"]
    assert killed["right"] > 0, "nothing was asked while there was one gateway"
    assert (killed["wrong"], killed["refused"]) == (0, [])
    assert (killed["before"], killed["new"]) == (2, 1)
    assert killed["after"]
    assert killed["same_actors"]
    assert told["same_actors"]
    assert told["actors_left"] == told["still_there"] == 2
    assert "replica" in told["unknown"]
    assert "name" in told["missing"]
    assert "at least one gateway" in told["gateways_refused"]
    assert "keys.txt.gone" in told["keys"]
    assert told["started_by_mistakes"] == 0


def test_the_app_is_made_of_its_arguments(
    local_ray: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The options of Serve, the actors that are started, and the gateway of each replica."""
    from velo_serving.on_ray import serve_app as ray_serve

    vectors = np.random.default_rng(5).standard_normal((300, 16)).astype(np.float32)
    path = velo.build_collection(tmp_path / "photos.velo", vectors, shards=2, calibrate=False, threads=1)
    keys = tmp_path / "keys.txt"
    keys.write_text("read a-key-of-this-test-0123\n")
    keys.chmod(0o600)
    args = {"name": "prints", "path": str(path), "threads": 1, "gateways": 2, "cpus": 0.1}
    args |= {"ready_shards": 2, "api_keys": str(keys)}
    for wrong, named in (
        ({**args, "replica": 2}, "replica"),
        ({"path": str(path)}, "name"),
        ({**args, "gateways": 0}, "at least one gateway"),
        ({**args, "api_keys": f"{keys}.gone"}, "keys.txt.gone"),
    ):
        with pytest.raises(VeloError, match=named):
            ray_serve.serve_app(wrong)
    assert places_of("prints") == [], "a mistake started actors"
    makers: list[Any] = []
    ingress = ray_serve.serve.ingress
    monkeypatch.setattr(ray_serve.serve, "ingress", lambda maker: makers.append(maker) or ingress(maker))
    try:
        deployment = ray_serve.serve_app(args)._bound_deployment
        places = {str(one) for one in places_of("prints")}
        assert len(places) == 2
        assert deployment.num_replicas == 2
        assert deployment.ray_actor_options["num_cpus"] == 0.1
        assert deployment.max_ongoing_requests > GatewayLimits().requests_max
        ray_serve.serve_app({**args, "gateways": 1})  # as after a change of its configuration
        assert {str(one) for one in places_of("prints")} == places, "the actors that run are used"
        queries = vectors[::40]
        expected = local_answer(path, SearchRequest(queries, 10, list_size=LIST_SIZE)).hits.ids

        async def ask() -> None:
            app = makers[0]()
            async with (
                app.router.lifespan_context(app),
                httpx.AsyncClient(
                    transport=httpx.ASGITransport(app), base_url="http://velo", timeout=60
                ) as client,
            ):
                body = {"vectors": queries.tolist(), "k": 10, "list_size": LIST_SIZE}
                assert (await client.post("/v1/search", json=body)).status_code == 401
                head = {"Authorization": "Bearer a-key-of-this-test-0123"}
                answer = await client.post("/v1/search", json=body, headers=head)
                assert answer.json()["ids"] == expected.tolist()
                assert (await client.get("/readyz")).json()["collections"] == {"prints": "2/2 shards"}

        asyncio.run(ask())
    finally:
        with Cluster.connect("prints") as cluster:
            for actor in cluster.actors:
                ray.kill(actor)


# ---- the manifest ----


@pytest.fixture(scope="module")
def manifest() -> Mapping[str, Any]:
    read: Mapping[str, Any] = yaml.safe_load(MANIFEST.read_text())
    return read


def groups(manifest: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    cluster = manifest["spec"]["rayClusterConfig"]
    return [cluster["headGroupSpec"], *cluster["workerGroupSpecs"]]


def app_of(manifest: Mapping[str, Any]) -> Mapping[str, Any]:
    (app,) = yaml.safe_load(manifest["spec"]["serveConfigV2"])["applications"]
    return dict(app)


def test_serve_takes_the_configuration_and_the_app_its_arguments(manifest: Mapping[str, Any]) -> None:
    from ray.serve.schema import ServeDeploySchema

    from velo_serving.on_ray.serve_app import _checked, serve_app

    ServeDeploySchema.model_validate(yaml.safe_load(manifest["spec"]["serveConfigV2"]))
    app = app_of(manifest)
    module, _, name = app["import_path"].partition(":")
    assert getattr(import_module(module), name) is serve_app
    assert list(inspect.signature(serve_app).parameters) == ["args"]
    told, _ = _checked(app["args"])
    assert told.path is not None
    assert app["route_prefix"] == "/"  # the paths of the gateway begin there


def check(value: Any, kind: Any, at: str = "$") -> None:
    """Hold what was read against the models of Kubernetes' own API: no field unknown, none missing."""
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if origin is typing.Union:
        check(value, next(one for one in inner if one is not type(None)), at)
    elif origin is list:
        assert isinstance(value, list), at
        for place, one in enumerate(value):
            check(one, inner[0], f"{at}[{place}]")
    elif isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        assert isinstance(value, dict), at
        fields = {field.encode_name: field for field in msgspec.structs.fields(kind)}
        unknown = set(value) - set(fields)
        assert not unknown, f"{at}: there is no {', '.join(unknown)} in a {kind.__name__}"
        for name, field in fields.items():
            if name in value:
                check(value[name], field.type, f"{at}.{name}")
            else:
                assert not field.required, f"{at}: a {kind.__name__} has a {name}"
    elif kind in (str, int, bool):
        assert type(value) is kind, f"{at}: {value!r} is no {kind.__name__}"


def test_every_pod_is_one_that_kubernetes_takes(manifest: Mapping[str, Any]) -> None:
    for group in groups(manifest):
        pod = group["template"]
        check(pod, core_v1.PodTemplateSpec)
        (container,) = pod["spec"]["containers"]
        volumes = {volume["name"] for volume in pod["spec"]["volumes"]}
        assert {mount["name"] for mount in container["volumeMounts"]} == volumes
        assert container["resources"]["limits"] == container["resources"]["requests"]


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"resource": {}}, "no resource in a Container"),
        ({"name": None}, "None is no str"),
        ({"ports": [{"name": "serve"}]}, "a ContainerPort has a containerPort"),
        ({"ports": [{"containerPort": "8000"}]}, "is no int"),
    ],
)
def test_an_invalid_pod_is_refused(manifest: Mapping[str, Any], change: dict[str, Any], why: str) -> None:
    """So that the test before can fail."""
    pod = json.loads(json.dumps(groups(manifest)[0]["template"]))
    pod["spec"]["containers"][0] |= change
    with pytest.raises(AssertionError, match=why):
        check(pod, core_v1.PodTemplateSpec)


def test_every_shard_has_a_group_with_its_resource_its_disk_and_room(manifest: Mapping[str, Any]) -> None:
    args = app_of(manifest)["args"]
    workers = groups(manifest)[1:]
    assert len(workers) == args["ready_shards"]
    for shard, group in enumerate(workers):
        pin = Pin.parse(args["pin"], str(shard))
        # KubeRay hands the text to a shell, which takes off one pair of quotes.
        resources = json.loads(json.loads(group["rayStartParams"]["resources"]))
        assert resources == {pin.resource: 1}
        assert group["replicas"] == group["minReplicas"] == group["maxReplicas"] == 1
        (container,) = group["template"]["spec"]["containers"]
        assert any(args["path"].startswith(mount["mountPath"]) for mount in container["volumeMounts"])
        per_shard = int(args["memory"].removesuffix("GiB")) / len(workers)
        assert int(container["resources"]["limits"]["memory"].removesuffix("Gi")) >= per_shard + 1
    claims = [
        volume["persistentVolumeClaim"]["claimName"]
        for group in workers
        for volume in group["template"]["spec"]["volumes"]
    ]
    assert len(set(claims)) == len(workers)
    ports = {
        port["name"]: port["containerPort"]
        for port in groups(manifest)[0]["template"]["spec"]["containers"][0]["ports"]
    }
    assert ports["serve"] == 8000


def test_the_manifest_names_the_release_and_ray_that_it_was_tried_with(manifest: Mapping[str, Any]) -> None:
    import ray

    images = {group["template"]["spec"]["containers"][0]["image"] for group in groups(manifest)}
    assert {image.rpartition(":")[2] for image in images} == {velo.__version__.partition("+")[0]}
    version = tuple(map(int, manifest["spec"]["rayClusterConfig"]["rayVersion"].split(".")))
    assert version[0] == int(ray.__version__.split(".")[0])
    assert MANIFEST.name in (ROOT / "docs" / "howto" / "ray.md").read_text()
