"""The agents at work as a list: its lines, the folded output of other agents, and the streams that keep it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.cli.repl.live_rows import LiveOutput, replied

from callboard.cli.repl.agent_streams import KEPT_ENDED, KEPT_LINES, AgentStreams
from callboard.cli.terminal.terminal import Line, columns
from callboard.cli.views.agents import AgentEnd, WorkingAgent, agent_lines, duration_words, ended_line
from callboard.core.keys import agent_key
from callboard.engine.row_cache import EndedAgentsSum, RowCache
from callboard.ports.model import Delta
from callboard.ports.store import Row
from callboard.types import events as ev
from callboard.types.records import AgentLife, AgentRow, AgentTotals, Envelope, ToolCall, Usage

NOW = 10_000.0
AGENTS = [
    WorkingAgent("lead", "waits for 3 subagents", NOW - 75, 10_240),
    WorkingAgent("explore 1", "Audit Cart: read_file src/shop/cart/totals_with_a_long_name.py", NOW - 9, 950),
    WorkingAgent("漢字", "waits for you: run pytest\nin two lines", NOW - 3_700, 2_000_000, asks=True),
]


def row(line: Line) -> str:
    """Return a line as it is on the screen."""
    return f"{line.name} {line.text}" if line.name else line.text


@pytest.mark.parametrize("width", [39, 40, 60, 80, 120, 200])
def test_a_line_of_the_list_fits_the_screen(width: int) -> None:
    lines = agent_lines(AGENTS, 4, width, NOW)
    assert len(lines) == len(AGENTS) + 1
    assert all(columns(row(line)) <= width for line in lines)
    assert [line.name.rstrip() for line in lines] == ["lead", "explore 1", "漢字", ""]
    assert lines[2].style == "warn"
    assert lines[-1].text.startswith("and 4 more at work")


def test_seconds_and_tokens_stand_below_each_other() -> None:
    assert [row(line) for line in agent_lines(AGENTS, 0, 60, NOW)] == [
        "lead       1 m 15 s  10.2k tokens  waits for 3 subagents",
        "explore 1       9 s    950 tokens  Audit Cart: read_file sr…",
        "漢字       1 h 01 m   2.0M tokens  waits for you: run pytest",
    ]
    assert row(agent_lines(AGENTS[:1], 0, 40, NOW)[0]) == "lead  1 m 15 s  10.2k  waits for 3 suba…"


def test_an_empty_list_takes_no_row() -> None:
    assert agent_lines([], 0, 80, NOW) == []


@pytest.mark.parametrize(
    ("seconds", "text"), [(-3, "0 s"), (59.9, "59 s"), (60, "1 m 00 s"), (3_599, "59 m 59 s"), (7_260, "2 h 01 m")]
)
def test_durations_are_short(seconds: float, text: str) -> None:
    assert duration_words(seconds) == text


def test_an_end_is_one_line() -> None:
    end = AgentEnd("done", "explore 1", seconds=62, tokens=35_900, role="Audit Cart", text="\nTwo findings.\nMore.")
    line = ended_line(end, 200)
    assert (line.name, line.style) == ("explore 1", "dim")
    assert line.text == "(Audit Cart) done in 1 m 02 s, 35.9k tokens: Two findings."
    assert columns(f"explore 1 {ended_line(end, 40).text}") <= 40
    assert ended_line(AgentEnd("limit", "a", text="30 steps"), 80) == Line("limit: 30 steps", "warn", "a")


# Folding


@pytest.fixture
def folded() -> Iterator[LiveOutput]:
    output = LiveOutput(lists_agents=True)
    yield output
    output.terminal.close()


def prompt(sender: str, recipient: str = "alice") -> Envelope:
    return Envelope(id=f"env_{sender}", sender=sender, recipient=recipient, type="prompt", content="Do it.")


def test_the_output_of_another_agent_is_in_its_stream_and_its_end_is_one_line(folded: LiveOutput) -> None:
    call = ToolCall(id="c1", use_id="u1", name="bash", input={"command": "pytest -q"})
    folded.event(ev.EnvelopeReceived(at=0, envelope=prompt("lead")), "alice")
    folded.event(ev.EnvelopesDelivered(at=0, ids=("env_lead",), blocks=()), "alice")
    folded.event(replied("I look.").model_copy(update={"calls": (call,)}), "alice")
    folded.event(ev.ToolFinished(at=0, call="c1", content=({"type": "text", "text": "3 passed"},)), "alice")
    folded.event(ev.TurnEnded(at=0, turn="t", reason="end", text="A last text."), "alice")
    folded.screen.on_mail(Envelope(id="env_2", sender="alice", recipient="bob", type="message", content="Hello."))
    assert folded.text() == ""
    stream = [line.text for line in folded.screen.streams.rows("alice", 80, 20)]
    assert stream == ["I look.", "bash pytest -q => 3 passed", "A last text.", "alice -> bob Hello."]
    folded.event(ev.AgentStopped(at=0, outcome="done", result="It works.\nReally."), "alice")
    assert folded.text() == "alice: done: It works.\n"


def test_an_agent_that_answers_the_person_is_printed_until_its_turn_ends(folded: LiveOutput) -> None:
    folded.event(ev.EnvelopeReceived(at=0, envelope=prompt("person")), "alice")
    folded.event(replied("Not yet yours."), "alice")
    folded.event(ev.EnvelopesDelivered(at=0, ids=("env_person",), blocks=()), "alice")
    folded.event(replied("A word for you."), "alice")
    folded.event(ev.TurnEnded(at=0, turn="t", reason="end", text="A word for you."), "alice")
    folded.event(ev.Reported(at=0, status="done", result="A word for you."), "alice")
    folded.event(replied("Work goes on."), "alice")
    assert folded.text() == "alice: A word for you.\n"
    folded.event(ev.Reported(at=0, status="done", result="A word for you."), "alice")
    assert folded.text() == "alice: A word for you.\nalice: reported done: A word for you.\n"


def test_what_advises_the_person_is_printed_whoever_it_is_about(folded: LiveOutput) -> None:
    folded.event(ev.RetryPlanned(at=0, until=3, attempt=2, why="overloaded"), "alice")
    folded.event(ev.AgentCrashed(at=0, why="a bug", count=3), "alice")
    assert folded.text().startswith("alice: crashed 3 times in a minute and is parked")
    assert "retry" not in folded.text()


def test_a_report_is_one_line_and_the_end_after_it_does_not_repeat_it(folded: LiveOutput) -> None:
    folded.event(ev.Reported(at=0, status="done", result="All tests pass."), "alice")
    folded.event(ev.AgentStopped(at=0, outcome="stopped", result="All tests pass."), "alice")
    assert folded.text() == "alice: reported done: All tests pass.\nalice: stopped\n"


def test_a_stream_shows_the_text_that_arrives_now(folded: LiveOutput) -> None:
    folded.screen.on_delta("alice", Delta("text", "I thi"))
    folded.screen.on_delta("alice", Delta("text", "nk."))
    assert [line.text for line in folded.screen.streams.rows("alice", 80, 5)] == ["I think."]
    folded.event(replied("I think."), "alice")
    assert [line.text for line in folded.screen.streams.rows("alice", 80, 5)] == ["I think."]
    assert folded.text() == ""


@pytest.mark.parametrize(("verbose", "lists_agents"), [(True, True), (False, False)])
def test_without_the_list_and_with_verbose_everything_is_printed(verbose: bool, lists_agents: bool) -> None:
    output = LiveOutput(verbose=verbose, lists_agents=lists_agents)
    output.event(replied("I look."), "alice")
    output.screen.on_mail(Envelope(id="env_2", sender="alice", recipient="bob", type="message", content="Hello."))
    assert "alice: I look.\n" in output.text()
    assert "alice -> bob Hello.\n" in output.text()
    output.terminal.close()


# Streams


def test_a_stream_keeps_its_newest_lines_and_says_that_older_ones_are_gone() -> None:
    streams = AgentStreams()
    for number in range(KEPT_LINES + 5):
        streams.add("alice", [Line(f"line {number}", name="alice")])
    assert [line.text for line in streams.rows("alice", 80, 2)] == [f"line {KEPT_LINES + 3}", f"line {KEPT_LINES + 4}"]
    assert [line.text for line in streams.rows("alice", 80, 2, 3)] == [f"line {KEPT_LINES}", f"line {KEPT_LINES + 1}"]
    everything = streams.rows("alice", 80, KEPT_LINES * 2)
    assert everything[0].text == "[5 older lines are not kept here]"
    assert len(everything) == KEPT_LINES + 1


def test_rows_of_a_stream_fit_the_screen() -> None:
    streams = AgentStreams()
    streams.add("alice", [Line("some words that need two rows"), Line("x" * 50), Line("hello", name="bob")])
    rows = streams.rows("alice", 20, 10)
    assert all(columns(f"{row.name} {row.text}".strip()) <= 20 for row in rows)
    assert [row.text for row in rows[:2]] == ["some words that need", "two rows"]


def test_the_streams_of_the_newest_ended_agents_are_kept() -> None:
    streams = AgentStreams()
    for number in range(KEPT_ENDED + 2):
        streams.add(f"agent-{number}", [Line("hello")])
        streams.end(f"agent-{number}")
    assert streams.rows("agent-1", 80, 1) == []
    assert streams.rows("agent-2", 80, 1) == [Line("hello")]


# Rows


def agent_row(name: str, at: float, life: AgentLife = "working", **more: object) -> AgentRow:
    fields = {"name": name, "kind": "subagent", "agent_type": "explore", "created_at": at, "since": at, "life": life}
    return AgentRow.model_validate({**fields, **more})


class Board:
    """A row cache with rows that the test puts."""

    def __init__(self) -> None:
        self.cache = RowCache("s1", lambda kind, name: None)
        self._revision = 0

    def put(self, *rows: AgentRow) -> None:
        for row in rows:
            self._revision += 1
            self.cache.take(Row(agent_key("s1", row.name), row.encode(), self._revision))


def test_subagents_are_numbered_by_age_and_type_however_their_rows_arrive() -> None:
    board = Board()
    board.put(agent_row("explore-z", 1.0), agent_row("explore-b", 3.0), agent_row("explore-a", 2.0))
    board.put(agent_row("plan-a", 4.0, agent_type="plan"), agent_row("alice", 5.0, kind="teammate"))
    cache = board.cache
    names = ["explore-z", "explore-a", "explore-b", "plan-a", "alice", "nobody"]
    labels = ["explore 1", "explore 2", "explore 3", "plan 1", "alice", "nobody"]
    assert [cache.label(name) for name in names] == labels
    assert [cache.name_of_label(label) for label in labels] == names
    assert [cache.name_of_label(label) for label in ("explore 0", "explore 4", "explore x", "explore ²", "")] == [
        "explore 0", "explore 4", "explore x", "explore ²", ""
    ]  # fmt: skip
    board.put(agent_row("explore-z", 1.0, "stopped"))
    assert cache.label("explore-a") == "explore 2", "a number stays when an older agent ends"


def test_ended_agents_are_added_once_and_a_new_life_of_a_name_counts_again() -> None:
    board = Board()
    added: list[str] = []

    def add(usage: Usage, row: AgentRow) -> Usage:
        added.append(row.name)
        return usage.plus(row.totals.usage if row.totals else Usage())

    total = EndedAgentsSum(board.cache, Usage(), add)
    totals = AgentTotals(usage=Usage(input_tokens=10))
    board.put(agent_row("a", 1.0, "stopped", totals=totals), agent_row("b", 2.0))
    assert total.now().input_tokens == 10
    board.put(agent_row("b", 2.0, "stopped", since=9.0, totals=totals))
    assert (total.now().input_tokens, added) == (20, ["a", "b"])
    assert [row.name for row in board.cache.newest_ended(1)] == ["b"]
    board.put(agent_row("a", 1.0, incarnation=2))
    assert total.now().input_tokens == 10
    assert [row.name for row in board.cache.living_agents()] == ["a"]
    board.put(agent_row("a", 1.0, "stopped", incarnation=2, totals=totals))
    assert total.now().input_tokens == 20
    assert board.cache.ended_count == 2
