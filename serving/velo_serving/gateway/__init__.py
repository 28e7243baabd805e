"""The HTTP gateway: a FastAPI app over a backend."""

from velo_serving.gateway.app import create_app

__all__ = ["create_app"]
