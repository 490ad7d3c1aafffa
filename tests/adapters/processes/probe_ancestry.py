"""Prints why this process counts as one of a tool's; run as a script by `test_tool_ancestry.py`."""

from callboard.adapters.processes.tool_ancestry import started_by_tool

print(started_by_tool() or "a person's")  # noqa: T201
