"""MCP: the client of the servers that sessions use, and a server made from plain callables."""
