"""Mailboxes and dead letters of a running session."""
