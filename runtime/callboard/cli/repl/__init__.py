"""Prompt line of the bare `callboard`. The only package that imports prompt_toolkit."""
