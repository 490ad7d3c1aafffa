"""The command line and everything that a terminal shows."""
