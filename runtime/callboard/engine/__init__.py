"""The engine: the loop of an agent, its operations, and what the agents of a session share."""
