"""Receipts: what a mailbox and a journal say of each envelope, and the tree of what caused what."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from callboard.core.reports.receipts import Receipt, newest, receipts, trace
from callboard.types import events as ev
from callboard.types.events import Event
from callboard.types.records import Envelope, EnvelopeType

RANKS = {"sent": 0, "received": 1, "delivered": 2, "handled": 3, "dropped": 3, "dead": 3}


def mail(id: str, seq: int = 0, type: EnvelopeType = "message", **more: object) -> Envelope:
    return Envelope.model_validate(
        {"id": id, "sender": "lead", "recipient": "alice", "type": type, "seq": seq, "sent_at": float(seq), **more}
    )


def took(envelope: Envelope, at: float) -> ev.EnvelopeReceived:
    return ev.EnvelopeReceived(at=at, envelope=envelope)


def turn(cause: str, *ids: str, at: float, ends: float | None = None) -> list[Event]:
    """A turn that takes these envelopes, ended or under way."""
    begun: list[Event] = [
        ev.TurnBegan(at=at, turn=f"turn_{cause}", cause=cause),
        ev.EnvelopesDelivered(at=at, ids=ids, blocks=()),
    ]
    return begun if ends is None else [*begun, ev.TurnEnded(at=ends, turn=f"turn_{cause}", reason="end")]


def test_an_envelope_is_sent_received_delivered_and_handled_at_its_times() -> None:
    one = mail("a", 1)
    life = [took(one, 2.0), *turn("a", "a", at=3.0, ends=9.0)]
    found = [receipts([one], life[:events])[0] for events in range(len(life) + 1)]
    assert [r.state for r in found] == ["sent", "received", "received", "delivered", "handled"]
    assert (found[-1].received_at, found[-1].delivered_at, found[-1].ended_at) == (2.0, 3.0, 9.0)


def test_what_enters_a_running_turn_says_which_envelope_began_that_turn() -> None:
    first, second = mail("a", 1), mail("b", 2)
    life = [took(first, 2.0), *turn("a", "a", at=3.0), took(second, 4.0)]
    life.append(ev.EnvelopesDelivered(at=5.0, ids=("b",), blocks=()))
    assert [(r.state, r.began) for r in receipts([first, second], life)] == [("delivered", "a"), ("delivered", "a")]


def test_a_dropped_envelope_says_why() -> None:
    one = mail("a", 1)
    life: list[Event] = [took(one, 2.0), ev.EnvelopesDropped(at=3.0, ids=("a",), why="a hook blocked it")]
    assert receipts([one], life) == [Receipt(one, "dropped", 2.0, None, 3.0, why="a hook blocked it")]


def test_an_envelope_that_does_not_count_says_why() -> None:
    one = mail("a", 1)
    refused = ev.EnvelopeReceived(at=2.0, envelope=one, refused="alice may not send a prompt")
    assert receipts([one], [refused]) == [Receipt(one, "dropped", 2.0, None, 2.0, why="alice may not send a prompt")]


@pytest.mark.parametrize("kind", ["command", "shutdown_request", "plan_approval_response", "permission_response"])
def test_what_is_for_the_runtime_is_handled_when_it_is_received(kind: EnvelopeType) -> None:
    one = mail("a", 1, kind)
    assert receipts([one], [took(one, 2.0)]) == [Receipt(one, "handled", 2.0, None, 2.0)]


def test_unread_mail_of_a_life_that_is_over_is_dead_and_what_was_read_is_handled() -> None:
    read, got, late = mail("a", 1), mail("b", 2), mail("c", 30)
    life = [took(read, 2.0), *turn("a", "a", at=3.0), took(got, 4.0), ev.AgentStopped(at=9.0, outcome="stopped")]
    found = {r.envelope.id: (r.state, r.ended_at) for r in receipts([read, got, late], life)}
    assert found == {"a": ("handled", 9.0), "b": ("dead", 9.0), "c": ("dead", 30.0)}


def test_a_life_that_only_its_row_knows_to_be_over_has_dead_mail_too() -> None:
    assert [r.state for r in receipts([mail("a", 1)], [])] == ["sent"]
    assert [r.state for r in receipts([mail("a", 1)], [], over=5.0)] == ["dead"]


def test_what_was_moved_to_the_next_life_counts_there() -> None:
    old = receipts([mail("a", 1)], [ev.AgentStopped(at=9.0, outcome="stopped")])
    moved = mail("a", 1, incarnation=2)
    new = receipts([moved], [took(moved, 10.0)])
    assert newest([old, new]) == newest([new, old]) == new


@dataclass
class Life:
    """A life played by the rules, with what is known of each envelope by the play itself."""

    now: float = 0.0
    mailbox: list[Envelope] = field(default_factory=list[Envelope])
    journal: list[Event] = field(default_factory=list[Event])
    states: dict[str, str] = field(default_factory=dict[str, str])
    times: dict[str, list[float]] = field(default_factory=dict[str, list[float]])
    position: int = 0
    in_turn: bool = False
    over: bool = False

    def play(self, move: str, draw: int) -> None:
        """One move, if it is possible now."""
        self.now += 1.0
        waiting = [one for one, state in self.states.items() if state == "received"]
        match move:
            case "send":
                seq = len(self.mailbox) + 1
                self.mailbox.append(mail(f"e{seq}", seq, "command" if draw == 0 else "message", sent_at=self.now))
                self._becomes([f"e{seq}"], "dead" if self.over else "sent")
            case "receive" if self.position < len(self.mailbox) and not self.over:
                one = self.mailbox[self.position]
                self.position += 1
                self.journal.append(took(one, self.now))
                self._becomes([one.id], "handled" if one.type == "command" else "received")
            case "begin" if not self.in_turn and waiting and not self.over:
                self.in_turn = True
                self.journal.append(ev.TurnBegan(at=self.now, turn="t", cause=waiting[0]))
            case "deliver" if self.in_turn and waiting:
                some = waiting[: 1 + draw % len(waiting)]
                self.journal.append(ev.EnvelopesDelivered(at=self.now, ids=tuple(some), blocks=()))
                self._becomes(some, "delivered")
            case "drop" if waiting and not self.over:
                self.journal.append(ev.EnvelopesDropped(at=self.now, ids=tuple(waiting[-1:]), why="no"))
                self._becomes(waiting[-1:], "dropped")
            case "end" if self.in_turn:
                self._end_turn(ev.TurnEnded(at=self.now, turn="t", reason="end"))
            case "stop" if not self.over:
                self.over = True
                self._end_turn(ev.AgentStopped(at=self.now, outcome="stopped"))
                self._becomes([one for one, state in self.states.items() if state in ("sent", "received")], "dead")
            case _:
                pass

    def _end_turn(self, event: Event) -> None:
        self.in_turn = False
        self.journal.append(event)
        self._becomes([one for one, state in self.states.items() if state == "delivered"], "handled")

    def _becomes(self, ids: list[str], state: str) -> None:
        for one in ids:
            self.states[one] = state
            self.times.setdefault(one, []).append(self.now)


MOVES = st.tuples(
    st.sampled_from(["send", "send", "receive", "receive", "begin", "deliver", "drop", "end", "stop"]),
    st.integers(0, 3),
)


@given(st.lists(MOVES, max_size=60))
def test_each_envelope_has_one_receipt_and_it_says_what_happened(moves: list[tuple[str, int]]) -> None:
    life = Life()
    before: dict[str, str] = {}
    for move, draw in moves:
        life.play(move, draw)
        found = receipts(life.mailbox, life.journal)
        assert [one.envelope.seq for one in found] == list(range(1, len(life.mailbox) + 1))
        states = {one.envelope.id: str(one.state) for one in found}
        assert states == life.states
        assert all(RANKS[states[one]] >= RANKS[was] for one, was in before.items()), "a receipt never goes back"
        before = states
    for one in receipts(life.mailbox, life.journal):
        told = [at for at in (one.received_at, one.delivered_at, one.ended_at) if at is not None]
        assert told == sorted(told)
        assert set(told) <= {*life.times[one.envelope.id]}
        assert (one.ended_at is not None) == (one.state in ("handled", "dropped", "dead"))


def sent(id: str, from_: str = "", answers: str | None = None, at: float = 0.0) -> Receipt:
    return Receipt(mail(id, caused_by=from_, reply_to=answers, sent_at=at))


def test_a_trace_goes_up_to_the_root_and_down_to_the_leaves() -> None:
    known = [
        sent("root"),
        sent("work", "root", at=1),
        sent("other", "root", at=2),
        sent("question", "work", at=3),
        sent("result", "question", answers="work", at=5),
        sent("answer", "question", answers="question", at=4),
        sent("thanks", "answer", at=6),
    ]
    found = trace(known, "work")
    assert [one.envelope.id for one in found.path] == ["root", "work"]
    assert [(depth, one.envelope.id) for depth, one in found.caused] == [
        (1, "question"),
        (2, "answer"),
        (3, "thanks"),
        (1, "result"),
    ]


def test_a_trace_ends_where_nothing_is_known_and_never_runs_in_a_circle() -> None:
    assert [one.envelope.id for one in trace([sent("a", "gone")], "a").path] == ["a"]
    circle = [sent("a", "c"), sent("b", "a"), sent("c", "b")]
    assert [one.envelope.id for one in trace(circle, "a").path] == ["b", "c", "a"]
    assert trace(circle, "a").caused == ()
    assert trace([sent("a", answers="a")], "a").caused == ()


@given(st.lists(st.integers(-1, 30), max_size=30), st.data())
def test_every_envelope_stands_once_below_its_root(parents: list[int], data: st.DataObject) -> None:
    known = [sent(f"e{n}", f"e{p}" if 0 <= p < n else "", at=n) for n, p in enumerate(parents)]
    if not known:
        return
    roots = [one.envelope.id for one in known if not one.envelope.caused_by]
    under = [one.envelope.id for root in roots for _, one in trace(known, root).caused]
    assert sorted(under + roots) == sorted(one.envelope.id for one in known)
    some = data.draw(st.sampled_from(known))
    path = trace(known, some.envelope.id).path
    assert path[0].envelope.id in roots
    assert [b.envelope.caused_by for b in path[1:]] == [a.envelope.id for a in path[:-1]]
