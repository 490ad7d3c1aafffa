"""Queries and actions on a session that another process hosts, and on the files of a workspace."""
