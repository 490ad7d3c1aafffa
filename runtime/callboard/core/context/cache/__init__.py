"""The prompt cache of the service: its marks, its cost, and how well it serves an agent."""
