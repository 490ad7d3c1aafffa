"""Live text: the protocol between a host and the processes that follow it."""
