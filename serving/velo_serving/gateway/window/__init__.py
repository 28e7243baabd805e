"""The window at ``/ui``: a page to look at collections with, and the paths that only it needs."""

from velo_serving.gateway.window.embedding import Embedding
from velo_serving.gateway.window.pages import add_window
from velo_serving.gateway.window.routes import window_routes

__all__ = ["Embedding", "add_window", "window_routes"]
