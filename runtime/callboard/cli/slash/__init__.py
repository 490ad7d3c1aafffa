"""Slash commands of the prompt line."""
