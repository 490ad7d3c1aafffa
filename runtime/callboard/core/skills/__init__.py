"""Skills and slash commands: parsing of input, expansion, and the catalogue. Pure."""
