"""Skills and slash commands, pure: parsing of input, expansion, and the catalogue."""
