"""Skills and slash commands, pure: what was typed, what it becomes, what the catalogue shows."""
