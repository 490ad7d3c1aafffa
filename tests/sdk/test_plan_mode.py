"""A lead in plan mode, with the rehearsal model and the real permission policy, carries out its approved plan."""

from __future__ import annotations

from pathlib import Path

import anyio
import pytest
from tests.sdk.test_sessions import events_of, tool_end

from callboard import Request, Session
from callboard.core.approvals.plans import AnswerDetails
from callboard.ports.environment import Answer
from callboard.sdk.errors import UsageError

SCENARIO = """\
agents:
  lead:
    - when: {contains: go}
      reply: [{tool_use: {name: write_file, input: {path: early.txt, content: x}}}]
    - when: {result_of: write_file, contains: "plan mode"}
      reply: [{tool_use: {name: submit_plan, input: {plan: "# Write it"}}}]
    - when: {result_of: submit_plan}
      reply: [{tool_use: {name: write_file, input: {path: made.txt, content: x}}}]
    - {when: {contains: again}, reply: [{tool_use: {name: write_file, input: {path: later.txt, content: x}}}]}
    - {otherwise: true, repeat: forever, reply: "Done."}
"""


@pytest.mark.parametrize("mode", ["default", "acceptEdits"])
def test_a_plan_that_was_approved_is_carried_out_in_the_chosen_mode(place: Path, mode: str) -> None:
    asked: list[str] = []

    def answer(request: Request) -> Answer:
        asked.append(request.kind)
        return Answer(
            "approved", "person", word=AnswerDetails(mode=mode) if request.kind == "plan" else AnswerDetails()
        )

    async def go() -> None:
        async with Session(place, permission_mode="plan", approver=answer) as session:
            told = await events_of(session, "go")
            assert not (place / "early.txt").exists()
            assert (place / "made.txt").exists(), told
            assert session.runtime.mode_of() == mode
            assert asked == (["plan"] if mode == "acceptEdits" else ["plan", "permission"])
            await session.runtime.use_mode("plan")
            later = await events_of(session, "again")
            assert "plan mode" in str(tool_end(later, "write_file"))
            with pytest.raises(UsageError, match="must be requested at the start"):
                await session.runtime.use_mode("bypassPermissions")
            with pytest.raises(UsageError, match="unknown mode"):
                await session.runtime.use_mode("yolo")

    anyio.run(go)
