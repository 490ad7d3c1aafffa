"""The prompt line of the bare `callboard`. The only room that imports prompt_toolkit."""
