"""Print the reason that this process counts as a tool's; run as a script by `test_tool_ancestry.py`."""

from callboard.adapters.processes.tool_ancestry import started_by_tool

print(started_by_tool() or "a person's")  # noqa: T201 - its output is what the test reads
