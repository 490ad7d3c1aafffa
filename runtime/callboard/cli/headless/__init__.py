"""Runs without a prompt line: text, JSON, and the protocol of clients that drive a session over stdin and stdout."""
