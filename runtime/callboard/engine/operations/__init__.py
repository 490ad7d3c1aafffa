"""Operations of agents. This module: skills that the user types or a model loads, as text, rights for a turn, or a
subagent."""
