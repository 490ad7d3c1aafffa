"""Small steps that tests of stages and of their pipeline share."""

from __future__ import annotations

from tests.core.context.context_histories import Session, said

from callboard.core.context.view.messages import is_result, result_text
from callboard.types.messages import Edit, SummaryWanted

NAME_MARK = "[Previous: used {}. Result cleared; ask again only if you need it.]"


def began() -> Session:
    return Session().user(said("go"))


def results(session: Session) -> list[str]:
    return [result_text(block) for message in session.view.messages for block in message.blocks if is_result(block)]


def edits(found: list[Edit] | SummaryWanted | None) -> list[Edit]:
    assert isinstance(found, list)
    return found


def wanted(found: list[Edit] | SummaryWanted | None) -> SummaryWanted:
    assert isinstance(found, SummaryWanted)
    return found


LETTERS = "abcdefghijklmnopqrstuvwxyz"


def worked(steps: int = 6, length: int = 4_000) -> Session:
    session = began()
    for number in range(steps):
        session.step(f"{LETTERS[number % 26]} " * (length // 2))
    return session
