"""A team: the states of its agents, their waits, their worktrees, and work that is still open."""
