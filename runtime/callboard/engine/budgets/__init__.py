"""Budgets of a running session."""
