"""Answers to requests, and the broker that asks the approvers of a process."""
