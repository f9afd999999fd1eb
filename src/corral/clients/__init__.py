"""Find the servers in the configuration files of MCP clients, and start them through corral."""
