"""Edits of a plan or a call before its approval: the text to edit, and what an edited text means. Pure.

A call is edited as the text of its main field, or as JSON.
"""

from __future__ import annotations

import json
from typing import Any, cast

from callboard.core.approvals.plans import AnswerDetails
from callboard.types.errors import UsageError
from callboard.types.records import Json, Request

PLAN_BYTES = 1_000_000
"""Largest plan in bytes; longer texts are refused."""
_MAIN_FIELDS = {"bash": ("command", ".sh"), "write_file": ("content", ".txt"), "edit_file": ("new_text", ".txt")}
"""Field of a tool's input that is edited as plain text, and the suffix of its file."""


def editable(request: Request) -> str:
    """Return the text of a pending plan. Raises `UsageError` for every other request."""
    if request.kind != "plan" or request.status != "pending":
        state = f"{request.id} is a {request.kind} that is {request.status}"
        raise UsageError(f"{state}: only a pending plan can be edited")
    return str(request.payload["plan"])


def approval(plan: Request, text: str) -> AnswerDetails:
    """Return the edited text as an answer to the original content. Raises `UsageError` if it is not a valid edit."""
    if len(text.encode()) > PLAN_BYTES:
        raise UsageError(f"the text is over {PLAN_BYTES:,} bytes: shorten it")
    text = text.rstrip("\n")
    if text.strip() == editable(plan).strip():
        raise UsageError(f"the plan is unchanged: nothing is approved. To approve it unchanged: approve {plan.id}")
    if not text.strip():
        raise UsageError(f"the text is empty: nothing is approved. To reject the plan, say why: reject {plan.id}")
    return AnswerDetails(plan=text, seen=plan.digest)


def text_to_edit(request: Request) -> tuple[str, str]:
    """Return the text of a pending plan or call, and the suffix of its file.

    Raises `UsageError` for every other request.
    """
    if request.kind != "permission":
        return editable(request), ".md"
    field, suffix = _main_field(request)
    if field:
        return str(_input_of(request)[field]), suffix
    return json.dumps(_input_of(request), indent=2, ensure_ascii=False), ".json"


def edited_input(request: Request, text: str) -> Json:
    """Return the edited text as the input of the call. Raises `UsageError` if it is not a valid edit."""
    before, _ = text_to_edit(request)
    if text.rstrip("\n") == before.rstrip("\n"):
        raise UsageError("the call is unchanged: nothing is allowed. Allow it without an edit, or edit it again")
    field, _ = _main_field(request)
    if field:
        if not text.strip() and field == "command":
            raise UsageError("the command is empty: nothing is allowed. Deny the call, or edit it again")
        return {**_input_of(request), field: text if before.endswith("\n") else text.removesuffix("\n")}
    try:
        edited: Any = json.loads(text)
    except ValueError as failed:
        raise UsageError(f"the edited call is not JSON ({failed}): nothing is allowed. Edit it again") from failed
    if not isinstance(edited, dict):
        raise UsageError("the edited call is not a JSON object: nothing is allowed. Edit it again")
    return cast("Json", edited)


def _main_field(request: Request) -> tuple[str, str]:
    """Return the field that is edited as text, and its suffix; empty if the whole input is edited."""
    field, suffix = _MAIN_FIELDS.get(str(request.payload.get("tool")), ("", ""))
    return (field, suffix) if isinstance(_input_of(request).get(field), str) else ("", "")


def _input_of(request: Request) -> Json:
    tool_input = request.payload.get("input")
    return cast("Json", tool_input) if isinstance(tool_input, dict) else {}
