"""The HTTP gateway: a FastAPI app over a backend."""

from velo_serving.gateway.app import create_app
from velo_serving.words.limits import GatewayLimits

__all__ = ["GatewayLimits", "create_app"]
