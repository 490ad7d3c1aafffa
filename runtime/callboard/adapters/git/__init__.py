"""Git: worktrees for agents, checkpoints of sessions, and the few facts about a repository that the runtime needs."""
