"""The team of a session: its supervisor, the lives of its members, and watchdogs."""
