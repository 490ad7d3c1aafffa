"""Files that people write for agents: definitions of agents and skills, hooks, plugins, instructions, memory notes."""
