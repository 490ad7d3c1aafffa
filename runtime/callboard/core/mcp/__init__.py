"""MCP servers: their entries, the names of their tools, the search for tools, and their questions."""
