"""Pending plans and answered rows, for tests of the output to a person."""

from __future__ import annotations

import time

from callboard.cli.terminal.terminal import Block
from callboard.core.approvals.plans import PlanBinding, payload_of
from callboard.core.approvals.requests import answer, open_request
from callboard.types.records import Request

COMMIT = "c0ffee" * 6 + "cafe"


def plan(text: str = "# Mend it\n1. read", *options: str, **fields: object) -> Request:
    """Return a pending plan of alice."""
    bound = PlanBinding("task_a", "env_1", "/work/roof", COMMIT)
    base = {"id": "req_a1", "kind": "plan", "asked_by": "alice", "may_answer": ("person", "policy"), "subject": text}
    payload = payload_of(text, options, bound)
    times = {"created_at": time.time(), "expires_at": time.time() + 1_800}
    return open_request(Request.model_validate({**base, **times, "payload": payload, **fields}))


def answered_request(request: Request, status: str, reason: str = "") -> Request:
    """Return the request as answered by a person."""
    row = answer(request, request.kind, by="person", status=status, reason=reason, now=request.created_at + 1)
    assert isinstance(row, Request)
    return row


def text_of(block: Block) -> str:
    return "\n".join(line.text for line in block.lines)
