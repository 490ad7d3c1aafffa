"""Budgets: limits on total use, as a tree."""
