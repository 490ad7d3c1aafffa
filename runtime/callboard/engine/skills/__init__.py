"""Skills in a session: what a person types, or a model loads, becomes text, rights for a turn, or a subagent."""
