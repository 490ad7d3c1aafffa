"""Sandbox of commands: the levels that a machine supports, the permitted paths, and the setup."""
