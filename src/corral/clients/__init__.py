"""Configuration files of MCP clients: find their servers, and start those through corral."""
