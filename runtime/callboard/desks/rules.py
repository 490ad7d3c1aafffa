"""The session rules that a person made with "always", seen and taken back from any process."""

from __future__ import annotations

from collections.abc import Sequence

from callboard.adapters.clock import SystemClock
from callboard.core.asking.session_rules import ended
from callboard.core.names import one_by_id, rule_key
from callboard.desks.persons import refuse_inside_tool
from callboard.engine.board import SessionBoard
from callboard.ports.store import Put, Store
from callboard.words.errors import UsageError
from callboard.words.values import SessionRule


class RuleDesk:
    """The session rules of one session."""

    def __init__(self, store: Store, session: str, board: SessionBoard) -> None:
        self._store, self._session, self._board, self._clock = store, session, board, SystemClock()

    def all(self) -> Sequence[SessionRule]:
        """Every one that was made, oldest first."""
        return self._board.rules()

    def standing(self) -> Sequence[SessionRule]:
        """Those in force now."""
        now = self._clock.now()
        return [one for one in self._board.rules() if not ended(one, now)]

    async def made_by(self, request_id: str) -> Sequence[SessionRule]:
        """Those that the answer to a permission made, as they stand in the store now."""
        await self._look()
        return [one for one in self._board.rules() if one.request_id == request_id]

    async def _look(self) -> None:
        self._board.take(*await self._store.keys(rule_key(self._session, "")))

    async def revoke(self, wanted: str) -> SessionRule:
        """Take one back, by its id or a beginning of it: from now on it allows nothing. Raises `UsageError` for one
        that fits no rule or several, that has ended, and inside a tool's process."""
        refuse_inside_tool("take a session rule back")
        await self._look()
        ids = [one.id for one in self._board.rules()]
        found = self._board.rule(one_by_id("session rule", ids, wanted, where=f"of session {self._session}"))
        assert found is not None, "it was found among them"
        rule, revision = found
        if why := ended(rule, self._clock.now()):
            raise UsageError(f"{rule.id} is {why} already: it allows nothing")
        taken = rule.model_copy(update={"revoked_at": self._clock.now()})
        await self._store.commit(Put(rule_key(self._session, rule.id), taken.encode(), expected=revision))
        return taken
