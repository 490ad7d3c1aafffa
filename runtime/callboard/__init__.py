"""Callboard: a lead agent, its team, a durable message bus, approvals and schedules."""

__version__ = "0.1.0"
