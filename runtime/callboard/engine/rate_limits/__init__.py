"""The rate limiter that all model calls of a process pass."""
