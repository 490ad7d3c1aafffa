"""Hooks: which ones match an event, what their output means, and how their answers are combined."""
