"""velo over Ray and HTTP: shards as actors, a gateway that merges them, a client, a step for data pipelines.

Nothing heavy is imported before it is used: the client needs no Ray, ``VectorSearch`` no FastAPI.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from velo_serving.backend import Backend, Generation, ServedCollection
    from velo_serving.client import Client
    from velo_serving.cluster import Cluster
    from velo_serving.cluster_search import ClusterSearch
    from velo_serving.collection import Collection, Pin, read_collection
    from velo_serving.gateway import GatewayLimits, create_app
    from velo_serving.gateway.access import Access
    from velo_serving.local_backend import open_local_backend
    from velo_serving.ray_building import build_on_ray
    from velo_serving.ray_serve import serve_app
    from velo_serving.router import Router, RouterLimits
    from velo_serving.serve import serve_connected, serve_local, serve_ray, start_ray, stop_ray
    from velo_serving.vector_search import VectorSearch

__all__ = [
    "Access",
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
    "ServedCollection",
    "VectorSearch",
    "build_on_ray",
    "create_app",
    "open_local_backend",
    "read_collection",
    "serve_app",
    "serve_connected",
    "serve_local",
    "serve_ray",
    "start_ray",
    "stop_ray",
]

_HOMES = {
    "Access": "gateway.access",
    "Backend": "backend",
    "Client": "client",
    "Cluster": "cluster",
    "ClusterSearch": "cluster_search",
    "Collection": "collection",
    "GatewayLimits": "gateway.limits",
    "Generation": "served",
    "Pin": "collection",
    "Router": "router",
    "RouterLimits": "router",
    "ServedCollection": "served",
    "VectorSearch": "vector_search",
    "build_on_ray": "ray_building",
    "create_app": "gateway.app",
    "open_local_backend": "local_backend",
    "read_collection": "collection",
    "serve_app": "ray_serve",
    "serve_connected": "serve",
    "serve_local": "serve",
    "serve_ray": "serve",
    "start_ray": "serve",
    "stop_ray": "serve",
}


def __getattr__(name: str) -> Any:
    """Import a public name when it is first asked for."""
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    value = getattr(import_module(f"{__name__}.{home}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
