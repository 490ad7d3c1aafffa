"""The context window: what a model reads, and how the runtime keeps it within its limits."""
