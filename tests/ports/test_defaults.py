"""What a tool may use where nobody provides it: skills, forms, questions and commits."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from callboard.ports.tool import CallContext, ElicitationAnswer
from callboard.ports.worktrees import Losses
from callboard.types.errors import ToolRefused


def default(name: str) -> Any:
    return next(field.default for field in dataclasses.fields(CallContext) if field.name == name)


@pytest.mark.anyio
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_a_context_without_a_session_has_no_skills_answers_forms_or_commits() -> None:
    with pytest.raises(ToolRefused, match="there is no skill 'review'"):
        await default("use_skill")("review", "")
    assert await default("elicit")(None) == ElicitationAnswer("decline")
    assert await default("ask")(None) is None
    assert await default("commit")() == ""


def test_a_worktree_loses_something_if_any_kind_of_work_is_in_it_alone() -> None:
    assert not Losses()
    for kind in ("changed", "untracked", "ignored", "commits"):
        assert Losses(**{kind: ("x",)})
    assert Losses(under_way="merge")
