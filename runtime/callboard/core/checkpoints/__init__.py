"""Checkpoints of a workspace in a git remote: their times, their branches, and the names of workspaces."""
