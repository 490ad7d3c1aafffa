"""Assertions over what a session has recorded. Each returns what it is called on, so that they read in one line:

    assert_that(record).agent("lead").called("read_file", path="hello.txt").then("report")

An assertion that does not hold raises `AssertionError`, which says what was there instead.
"""

from __future__ import annotations

from collections import Counter
from typing import Self

from callboard.testing.records import AgentRecord, Called, Recorded
from callboard.words.events import AnswerTaken, ToolStarted


def _listed(calls: tuple[Called, ...]) -> str:
    return "\n".join(f"  {call}" for call in calls) or "  (no call at all)"


class ThatAgent:
    """What is claimed of one agent."""

    def __init__(self, record: AgentRecord) -> None:
        self.record = record
        self._after = 0

    def called(self, name: str, /, *, times: int | None = None, **given: object) -> Self:
        """It called this tool with these inputs among others, and the call ran. `times`: exactly so often."""
        found = self._ran(name, given)
        what = f"{self.record.name} called {_call(name, given)}"
        if times is None and not found:
            raise AssertionError(f"expected that {what}; it called\n{_listed(self.record.calls)}")
        if times is not None and len(found) != times:
            raise AssertionError(f"expected that {what} {times} times, not {len(found)}:\n{_listed(self.record.calls)}")
        self._after = found[0] + 1 if found else self._after
        return self

    def then(self, name: str, /, **given: object) -> Self:
        """It called this tool after the call that the last claim was about."""
        found = [place for place in self._ran(name, given) if place >= self._after]
        if not found:
            what = f"{self.record.name} then called {_call(name, given)}"
            raise AssertionError(f"expected that {what}; it called\n{_listed(self.record.calls)}")
        self._after = found[0] + 1
        return self

    def never_called(self, name: str, /, **given: object) -> Self:
        """No such call of it ran; one that was refused is none."""
        found = tuple(self.record.calls[place] for place in self._ran(name, given))
        if found:
            raise AssertionError(f"expected that {self.record.name} never called {name}; it did\n{_listed(found)}")
        return self

    def refused(self, name: str, /, **given: object) -> Self:
        """It asked for such a call, which did not run."""
        calls = self.record.calls
        if not any(call.name == name and _fits(call, given) and not call.started for call in calls):
            raise AssertionError(f"expected that {_call(name, given)} was refused; there were\n{_listed(calls)}")
        return self

    def said(self, words: str) -> Self:
        """One of its replies has these words in its text."""
        if not any(words in text for text in self.record.texts):
            raise AssertionError(f"{self.record.name} never said {words!r}; it said {list(self.record.texts)}")
        return self

    def ended_with(self, words: str) -> Self:
        """Its last reply with a text has these words."""
        last = self.record.texts[-1] if self.record.texts else ""
        if words not in last:
            raise AssertionError(f"the last words of {self.record.name} are {last!r}: there is no {words!r} in them")
        return self

    def heard(self, words: str, sender: str = "") -> Self:
        """An envelope with these words entered its conversation. `sender`: from this agent, or `person`."""
        taken = set(self.record.delivered)
        mail = [one for one in self.record.mail if one.id in taken]
        if not any(words in one.content and sender in ("", one.sender) for one in mail):
            told = [f"{one.sender}: {one.content}" for one in mail]
            raise AssertionError(f"{self.record.name} never heard {words!r} {f'of {sender}' if sender else ''}: {told}")
        return self

    def approved_before(self, name: str, /) -> Self:
        """Something that it had asked for was approved before its first call of this tool ran."""
        ran = {call.id for call in self.record.calls if call.name == name and call.started}
        if not ran:
            raise AssertionError(f"{self.record.name} never called {name}")
        for event in self.record.events:
            if isinstance(event, AnswerTaken) and event.status == "approved":
                break
            if isinstance(event, ToolStarted) and event.call in ran:
                raise AssertionError(f"{self.record.name} called {name} before anything was approved")
        return self

    def _ran(self, name: str, given: dict[str, object]) -> list[int]:
        calls = enumerate(self.record.calls)
        return [at for at, call in calls if call.name == name and call.started and _fits(call, given)]


class ThatSession:
    """What is claimed of a whole session."""

    def __init__(self, record: Recorded) -> None:
        self.record = record

    def agent(self, name: str) -> ThatAgent:
        """An agent, for claims of its own."""
        return ThatAgent(self.record.agent(name))

    @property
    def lead(self) -> ThatAgent:
        """The lead, for claims of its own."""
        return self.agent("lead")

    def has_agents(self, *names: str) -> Self:
        """These agents there were, and no others beside the lead; subagents by their type (`explore`)."""
        found = Counter(
            one.row.agent_type if one.row and one.row.kind == "subagent" else one.name for one in self.record
        )
        if found != Counter(("lead", *names)):
            raise AssertionError(f"expected the agents {', '.join(names)}; there were: {', '.join(self.record.agents)}")
        return self

    def every_call_has_a_result(self) -> Self:
        """No call of any agent was left without its result."""
        lost = tuple(call for call in self.record.calls if call.result is None)
        if lost:
            raise AssertionError(f"these calls have no result:\n{_listed(lost)}")
        return self

    def every_message_once(self) -> Self:
        """Whatever was sent to an agent is in its mailbox once, and entered its conversation at most once."""
        for agent in self.record:
            for what, ids in (("sent", [one.id for one in agent.mail]), ("delivered", list(agent.delivered))):
                twice = sorted(id for id, count in Counter(ids).items() if count > 1)
                if twice:
                    raise AssertionError(f"{what} to {agent.name} more than once: {', '.join(twice)}")
        return self

    def cost_under(self, dollars: float) -> Self:
        """All replies together cost less than this (US dollars, by the prices in the agents' specs)."""
        if not self.record.usage.cost_usd < dollars:
            raise AssertionError(f"it cost ${self.record.usage.cost_usd:.4f}: not less than ${dollars:.4f}")
        return self

    def tokens_under(self, tokens: int) -> Self:
        """All replies together used fewer tokens than this, input and output."""
        used = self.record.usage.prompt_tokens + self.record.usage.output_tokens
        if not used < tokens:
            raise AssertionError(f"it used {used:,} tokens: not less than {tokens:,}")
        return self

    def nothing_waits(self) -> Self:
        """No request is without an answer, and no task is open."""
        open_ = [one.id for one in self.record.requests if one.status == "pending"]
        open_ += [one.id for one in self.record.tasks if one.status in ("pending", "in_progress")]
        if open_:
            raise AssertionError(f"these wait: {', '.join(open_)}")
        return self


def assert_that(record: Recorded) -> ThatSession:
    """Claims about a session: `assert_that(await session.record())`, or about one on disk: `await recorded(FOLDER)`."""
    return ThatSession(record)


def _fits(call: Called, given: dict[str, object]) -> bool:
    missing = object()
    return all(call.input.get(name, missing) == value for name, value in given.items())


def _call(name: str, given: dict[str, object]) -> str:
    return f"{name}({', '.join(f'{key}={value!r}' for key, value in given.items())})"
