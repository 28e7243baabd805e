"""The dashboard at ``/ui``: its page, and the paths that only it needs."""

from velo_serving.gateway.dashboard.embedding import Embedding
from velo_serving.gateway.dashboard.pages import add_dashboard
from velo_serving.gateway.dashboard.routes import dashboard_routes

__all__ = ["Embedding", "add_dashboard", "dashboard_routes"]
