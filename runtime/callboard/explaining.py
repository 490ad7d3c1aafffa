"""What `callboard policy` answers with: the judge of a workspace, and what is known of its tools."""

from __future__ import annotations

from pathlib import Path

from callboard.adapters.explaining import Explainer, Judged
from callboard.assembly import all_tools, find_places
from callboard.core.permission.given import GivenCall, Known, Misread, read_line
from callboard.core.permission.values import Floor, Verdict
from callboard.words.values import Json


def known_tools(workspace: Path) -> dict[str, Known]:
    """What is known of each tool of the runtime."""
    return {
        name: Known(t.spec.effect, _texts(t.spec.input_schema), t.spec.destructive)
        for name, t in all_tools({}, workspace).items()
    }


def _texts(schema: Json) -> frozenset[str]:
    return frozenset(name for name, of in schema.get("properties", {}).items() if of.get("type") == "string")


class Explaining:
    """The judge of one workspace. Raises `WorkspaceUnusable` for a folder that is not there."""

    def __init__(self, workspace: Path, floor: Floor | None = None) -> None:
        places = find_places(workspace, writable=False)
        self.known = known_tools(places.workspace)
        self._explainer = Explainer(places.workspace, (places.state, places.config), self.known, floor)

    def judge(self, call: GivenCall) -> Judged:
        """What would be said of a call. Raises `Misread` for a folder that cannot be one."""
        return self._explainer.judge(call)

    def line(self, line: bytes) -> Verdict:
        """What would be said of the call on a line of JSON. Never raises: what cannot be read is denied."""
        try:
            return self.judge(read_line(line, self.known)).verdict
        except Misread as wrong:
            return Verdict("deny", "input", f"the call cannot be read: {wrong}")
        except Exception as bug:  # noqa: BLE001  whoever feeds thousands of lines gets an answer to each of them
            return Verdict("deny", "bug", f"a bug of ours: {type(bug).__name__}: {bug}"[:300])
