"""Workflows from code: their functions, their steps, and their journal."""
