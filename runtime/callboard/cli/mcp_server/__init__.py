"""`callboard mcp serve`: Callboard as a server for MCP clients."""
