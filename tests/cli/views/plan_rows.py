"""Plans that wait, and rows that are answered, for tests of what a person sees."""

from __future__ import annotations

import time

from callboard.cli.terminal.terminal import Block
from callboard.core.approvals.plans import Bound, payload_of
from callboard.core.approvals.requests import answer, open_request
from callboard.types.records import Request

COMMIT = "c0ffee" * 6 + "cafe"


def plan(text: str = "# Mend it\n1. read", *options: str, **fields: object) -> Request:
    """A plan of alice's that waits."""
    bound = Bound("task_a", "env_1", "/work/roof", COMMIT)
    base = {"id": "req_a1", "kind": "plan", "asked_by": "alice", "may_answer": ("person", "policy"), "subject": text}
    payload = payload_of(text, options, bound)
    times = {"created_at": time.time(), "expires_at": time.time() + 1_800}
    return open_request(Request.model_validate({**base, **times, "payload": payload, **fields}))


def decided(request: Request, status: str, reason: str = "") -> Request:
    """As a person answers it."""
    row = answer(request, request.kind, by="person", status=status, reason=reason, now=request.created_at + 1)  # type: ignore[arg-type]
    assert isinstance(row, Request)
    return row


def said(block: Block) -> str:
    return "\n".join(line.text for line in block.lines)
