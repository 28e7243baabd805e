"""velo over Ray and HTTP: shards as actors, a gateway that merges them, a client, a step for data pipelines.

Nothing heavy is imported before it is used: the client needs no Ray, ``VectorSearch`` no FastAPI.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from velo_serving.catalog.collection import Collection, Pin, read_collection
    from velo_serving.client.client import AsyncClient, Client
    from velo_serving.gateway import create_app
    from velo_serving.gateway.access import Access
    from velo_serving.hosting.serve import serve_connected, serve_local, serve_ray, start_ray, stop_ray
    from velo_serving.on_ray.building import build_on_ray
    from velo_serving.on_ray.cluster import Cluster, ClusterSearch
    from velo_serving.on_ray.datasets import read_velo, write_velo
    from velo_serving.on_ray.serve_app import serve_app
    from velo_serving.on_ray.vector_search import VectorSearch
    from velo_serving.protocol.limits import GatewayLimits, RouterLimits
    from velo_serving.protocol.options import ServeOptions
    from velo_serving.routing.backend import Backend
    from velo_serving.routing.local_backend import open_local_backend
    from velo_serving.routing.router import Router
    from velo_serving.routing.served import Generation, ServedCollection

__all__ = [
    "Access",
    "AsyncClient",
    "Backend",
    "Client",
    "Cluster",
    "ClusterSearch",
    "Collection",
    "GatewayLimits",
    "Generation",
    "Pin",
    "Router",
    "RouterLimits",
    "ServeOptions",
    "ServedCollection",
    "VectorSearch",
    "build_on_ray",
    "create_app",
    "open_local_backend",
    "read_collection",
    "read_velo",
    "serve_app",
    "serve_connected",
    "serve_local",
    "serve_ray",
    "start_ray",
    "stop_ray",
    "write_velo",
]

_HOMES = {
    name: home
    for home, names in {
        "catalog.collection": ("Collection", "Pin", "read_collection"),
        "client.client": ("AsyncClient", "Client"),
        "gateway.access": ("Access",),
        "gateway.app": ("create_app",),
        "hosting.serve": ("serve_connected", "serve_local", "serve_ray", "start_ray", "stop_ray"),
        "on_ray.building": ("build_on_ray",),
        "on_ray.cluster": ("Cluster", "ClusterSearch"),
        "on_ray.datasets": ("read_velo", "write_velo"),
        "on_ray.serve_app": ("serve_app",),
        "on_ray.vector_search": ("VectorSearch",),
        "protocol.limits": ("GatewayLimits", "RouterLimits"),
        "protocol.options": ("ServeOptions",),
        "routing.backend": ("Backend",),
        "routing.local_backend": ("open_local_backend",),
        "routing.router": ("Router",),
        "routing.served": ("Generation", "ServedCollection"),
    }.items()
    for name in names
}


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    value = getattr(import_module(f"{__name__}.{home}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
