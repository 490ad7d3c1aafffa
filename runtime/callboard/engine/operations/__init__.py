"""Operations of agents, started by the step handlers."""
