"""Places that builds may be published from: an admin key is no way to the network behind the server."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.serving.conftest import ADMIN, READ
from tests.serving.exact_gateway import checked, exact_backend, serving
from velo_serving import Access

#: Of a service inside, by each option that names a host.
INSIDE = (
    "s3://bucket/photos?endpoint_override=169.254.169.254",
    "s3://bucket/photos?region=x&endpoint%5Foverride=10.0.0.1:80",
    "gs://bucket/photos?endpoint_override=localhost:9000",
    "abfs://files@10.0.0.1/photos",
    "hdfs://10.0.0.1:8020/photos",
    "http://10.0.0.1/photos",
)
STORE = "s3://builds/velo?endpoint_override=minio:9000"


@pytest.mark.parametrize(
    ("allowed", "refused", "fitting"),
    [
        ((), INSIDE, ("/nowhere/else",)),
        (
            ("/builds", STORE),
            (*INSIDE, "/builds-2/a", "/builds/../etc", "builds/a", "s3://builds/velo/a", f"{STORE}&region=x"),
            ("/builds/a", "/builds"),
        ),
    ],
)
async def test_builds_come_from_allowed_places(
    allowed: tuple[str, ...], refused: tuple[str, ...], fitting: tuple[str, ...], tmp_path: Path
) -> None:
    keys = tmp_path / "keys"
    keys.write_text(f"read {READ}\nadmin {ADMIN}\n")
    access = Access(api_keys=str(keys), publish_from=allowed)
    async with serving(exact_backend(tmp_path), access=access) as client:
        client.headers["Authorization"] = f"Bearer {ADMIN}"
        for path in (*refused, *fitting):
            answer = await client.post("/v1/collections/things/publish", json={"path": path, "version": "2"})
            error = checked(answer, 422)
            assert ("none of the places" in error["message"]) is (path in refused), path
