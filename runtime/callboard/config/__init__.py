"""Settings and their layers, trust in a workspace, and configured hooks."""
