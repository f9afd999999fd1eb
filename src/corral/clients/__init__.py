"""MCP clients and their configurations: which servers they start, and starting them by corral."""

from __future__ import annotations

from corral.clients.find_server import Configured, find

__all__ = ["Configured", "find"]
