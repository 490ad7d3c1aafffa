"""Requests that wait for an answer, plans and their gate, and session rules."""
