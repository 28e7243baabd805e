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
    "Access": "gateway.access",
    "AsyncClient": "client.client",
    "Backend": "routing.backend",
    "Client": "client.client",
    "Cluster": "on_ray.cluster",
    "ClusterSearch": "on_ray.cluster",
    "Collection": "catalog.collection",
    "GatewayLimits": "protocol.limits",
    "Generation": "routing.served",
    "Pin": "catalog.collection",
    "Router": "routing.router",
    "RouterLimits": "protocol.limits",
    "ServeOptions": "protocol.options",
    "ServedCollection": "routing.served",
    "VectorSearch": "on_ray.vector_search",
    "build_on_ray": "on_ray.building",
    "create_app": "gateway.app",
    "open_local_backend": "routing.local_backend",
    "read_collection": "catalog.collection",
    "read_velo": "on_ray.datasets",
    "serve_app": "on_ray.serve_app",
    "serve_connected": "hosting.serve",
    "serve_local": "hosting.serve",
    "serve_ray": "hosting.serve",
    "start_ray": "hosting.serve",
    "stop_ray": "hosting.serve",
    "write_velo": "on_ray.datasets",
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
