"""One cell of the fault matrix as a real session: the adapter over HTTP, the store on disk, the tools on files.

What is looked at afterwards is what people see: how the run ended and why, what was shown, what was billed, what the
files hold, and whether the session can be taken up again.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, field
from pathlib import Path

import anyio
from tests.simulation.evidence import broken, gather
from tests.simulation.fault_script import DONE, END, FILES, GO_ON, MODEL, NOTHING_ELSE, PROMPT
from tests.simulation.fault_service import KEY, Cell, FaultService, fault_service

from callboard.core.keys import agent_key
from callboard.core.reports.spending import Spending
from callboard.engine.budgets.spending import session_spending
from callboard.ports.model import Delta
from callboard.sessions.open import open_session
from callboard.sessions.options import IdentityOptions, SessionOptions, WorkspaceOptions
from callboard.sessions.places import find_places
from callboard.sessions.result import RunEnd
from callboard.sessions.stores import log_notice, open_store
from callboard.types import events as ev
from callboard.types.records import AgentRow, Envelope, Usage
from callboard.types.settings import Settings

PATIENCE = 200_000.0
"""Virtual seconds after which a session hangs."""


@dataclass
class Watcher:
    """What a person could see, and the laws of it."""

    events: list[tuple[str, ev.Event]] = field(default_factory=list[tuple[str, ev.Event]])
    mail: list[Envelope] = field(default_factory=list[Envelope])
    shown: dict[str, str] = field(default_factory=lambda: defaultdict[str, str](str))
    """The text of each agent's call under way, and a mark for whatever else was shown of it."""
    faults: list[str] = field(default_factory=list[str])

    def on_delta(self, agent: str, delta: Delta) -> None:
        if delta.kind == "dropped":
            self.shown[agent] = ""
        elif delta.kind == "text":
            self.shown[agent] += delta.text
        elif delta.kind in ("thinking", "tool"):
            self.shown[agent] += "" if self.shown[agent] else "\0"

    def on_event(self, agent: str, seq: int, event: ev.Event) -> None:
        self.events.append((agent, event))
        match event:
            case ev.CallFailed(purpose="turn") | ev.ReplyDropped() if self.shown[agent]:
                self.faults.append(f"{agent}: {self.shown[agent]!r} stands on the screen, and its call failed")
            case ev.ModelReplied():
                text = "".join(str(block["text"]) for block in event.blocks if block["type"] == "text")
                if self.shown[agent].replace("\0", "") != text:
                    self.faults.append(f"{agent}: shown was {self.shown[agent]!r}, and kept {text!r}")
                self.shown[agent] = ""
            case _:
                pass

    def on_mail(self, envelope: Envelope) -> None:
        self.mail.append(envelope)

    @property
    def usage(self) -> Usage:
        """What the journals say was used, failed calls included."""
        total = Usage()
        for _, event in self.events:
            used = event.fault.usage if isinstance(event, ev.CallFailed) else getattr(event, "usage", None)
            total = total.plus(used) if used else total
        return total

    def told_lead(self) -> list[str]:
        """What the lead was told of failures: by mail, and by results of its subagent."""
        found = [one.content for one in self.mail if one.type == "error" and one.recipient == "lead"]
        for agent, event in self.events:
            if agent == "lead" and isinstance(event, ev.ToolFinished) and event.is_error:
                found += [str(block.get("text")) for block in event.content]
        return found


@dataclass
class Outcome:
    """How a cell came out."""

    cell: Cell
    first: RunEnd
    second: RunEnd
    service: FaultService
    watcher: Watcher
    files: dict[str, tuple[str, ...]]
    broken: list[str]
    spending: Spending
    """What `callboard cost` says."""


async def play(cell: Cell, folder: Path) -> Outcome:
    """The session with its fault, then the same session taken up again with one more prompt and no fault."""
    workspace = folder / "workspace"
    workspace.mkdir()
    for name in FILES:
        (workspace / name).write_text(f"{END}\n")
    (workspace / "long.txt").write_text("".join(f"Line {n} of what there is to know.\n" for n in range(600)))
    async with fault_service(cell) as service:
        flags = {"base_url": service.url, "model": MODEL, "permission.mode": "bypassPermissions"}
        options = SessionOptions(
            WorkspaceOptions(workspace, flags={**flags, "durability": "process"}),
            identity=IdentityOptions(prompt=PROMPT),
        )
        watcher = Watcher()
        with anyio.fail_after(PATIENCE):
            first, session = await _run(options, watcher)
        counted = first.usage
        assert _counts(counted) == _counts(watcher.usage), "the end of the run counts what its events count"
        await service.mend()
        with anyio.fail_after(PATIENCE):
            second, _ = await _run(
                SessionOptions(
                    WorkspaceOptions(workspace, flags=flags), identity=IdentityOptions(resume=True, prompt=GO_ON)
                ),
                watcher,
            )
        laws, spending = await _afterwards(workspace, session)
        files = {name: tuple((workspace / name).read_text().splitlines()[:-1]) for name in FILES}
        return Outcome(cell, first, second, service, watcher, files, laws, spending)


async def _run(options: SessionOptions, watcher: Watcher) -> tuple[RunEnd, str]:
    async with open_session(options, observers=[watcher]) as session:
        return await session.wait_finished(), session.id


async def _afterwards(workspace: Path, session: str) -> tuple[list[str], Spending]:
    """The laws that are broken, and what was spent."""
    store = await open_store(find_places(workspace), Settings(durability="process"), log_notice)
    try:
        rows = [
            AgentRow.model_validate_json(row.value) for row in await store.keys(agent_key(session, "")) if row.value
        ]
        return broken(await gather(store, session)), await session_spending(store, session, rows)
    finally:
        await store.aclose()


def _counts(usage: Usage) -> tuple[int, int, int, int]:
    return (
        usage.input_tokens,
        usage.cache_creation_input_tokens,
        usage.cache_read_input_tokens,
        usage.output_tokens,
    )


def faults_of(outcome: Outcome) -> list[str]:
    """What went otherwise than it must. Empty is what we want."""
    service, watcher = outcome.service, outcome.watcher
    found = [
        *_cause(outcome),
        *service.complaints,
        *watcher.faults,
        *outcome.broken,
        *_ending(outcome),
        *_summaries(outcome),
        *_files(outcome),
    ]
    if not service.struck:
        found.append("the fault struck nobody")
    found += _money(outcome)
    runs = Counter(event.call for _, event in watcher.events if isinstance(event, ev.ToolStarted))
    found += [f"{call} ran {times} times" for call, times in runs.items() if times > 1]
    return found


def _money(outcome: Outcome) -> list[str]:
    """All that the client was told of is counted; each answer that it may not have read, and that told it nothing, is
    told as one that is perhaps billed."""
    service, counted = outcome.service, _counts(outcome.watcher.usage)
    least, most = _counts(service.billed), _counts(service.billed.plus(service.perhaps))
    found: list[str] = []
    if not all(low <= one <= high for low, one, high in zip(least, counted, most, strict=True)):
        found.append(f"billed {least} to {most}, counted {counted}")
    failed = [event.fault for _, event in outcome.watcher.events if isinstance(event, ev.CallFailed)]
    told = sum(fault.usage is not None for fault in failed) if service.unread else 0
    perhaps = outcome.spending.total.all_unused.unknown
    if perhaps + told < service.unread:
        found.append(f"{service.unread} answers perhaps not read: {told} counted, {perhaps} told as perhaps billed")
    if _counts(outcome.spending.total.usage) != counted:
        found.append(f"`cost` says {_counts(outcome.spending.total.usage)}, the events {counted}")
    return found


def _ending(outcome: Outcome) -> list[str]:
    cell, first, second = outcome.cell, outcome.first, outcome.second
    found: list[str] = []
    if ends_well(cell):
        if (first.exit_code, first.text) != (0, DONE):
            found.append(f"the run ended with {first.exit_code}: {first.text!r}, because {first.why!r}")
    elif cell.role == "lead" or cell.kind.meaning in ("outage", "key"):
        if first.exit_code != cell.kind.code:
            found.append(f"the run ended with {first.exit_code}, not {cell.kind.code}: {first.why!r}")
        found += [
            f"the person is not told {word!r}: {first.why!r}" for word in cell.kind.words if word not in first.why
        ]
    else:
        told = "\n".join(outcome.watcher.told_lead())
        advice = [word for word in cell.kind.words if word.startswith("--")]  # an option: only a person can follow that
        expected = [word for word in cell.kind.words if word not in advice]
        found += [f"the lead is not told {word!r}: {told!r}" for word in expected if word not in told]
        found += [f"the lead is told {word!r}, which only a person can do: {told!r}" for word in advice if word in told]
    over = ends_well(cell) or (cell.role == "subagent" and cell.kind.meaning not in ("outage", "key"))
    if (second.exit_code, second.text) != (0, NOTHING_ELSE if over else DONE):
        found.append(f"taken up again, it ended with {second.exit_code}: {second.text!r}, because {second.why!r}")
    return found


def _cause(outcome: Outcome) -> list[str]:
    """The journal names the fault as what it was, also where a retry mended it."""
    kind = outcome.cell.kind
    faults = [event.fault for _, event in outcome.watcher.events if isinstance(event, ev.CallFailed)]
    said = [f"{fault.kind}: {fault.type} {fault.status}: {fault.message}" for fault in faults]
    if kind.meaning != "transient" or kind.name == "max-tokens" or all(word in said[0] for word in kind.words):
        return []
    return [f"the fault is recorded as {said[:1]}, without {kind.words}"]


def _summaries(outcome: Outcome) -> list[str]:
    """A summary that is given up is told; one that is not leaves no failure behind. One that would have to wait for
    ten minutes is given up: the turn goes on and waits itself, and the next one tries again. Where the key is refused
    or has to wait, whichever agent met it, a summary that was due in that moment is given up too."""
    cell, failed = outcome.cell, [e.why for _, e in outcome.watcher.events if isinstance(e, ev.SummaryFailed)]
    stays = cell.mode == "forever" and cell.kind.meaning in ("transient", "too_long")
    lost = (
        cell.role == "summary"
        and (stays or cell.kind.meaning in ("final", "key", "parked"))
        and cell.kind.name != "max-tokens"
    )
    if cell.kind.meaning == "outage" or bool(failed) == lost or (failed and cell.kind.meaning in ("key", "parked")):
        return []
    return [f"summaries that failed: {failed}"]


def ends_well(cell: Cell) -> bool:
    """Whether the run must come to its right result in spite of the fault."""
    if cell.role == "summary" and cell.kind.meaning not in ("outage", "key"):
        return True  # there is always the oldest to be dropped
    if cell.kind.meaning == "too_long" and cell.step == "first":
        return False  # there is nothing yet that could be left out
    return cell.kind.meaning in ("harmless", "parked", "again") or (
        cell.mode == "once" and cell.kind.meaning not in ("final", "key")
    )


def _files(outcome: Outcome) -> list[str]:
    """Each line once, in its order; the subagent's are missing where it failed, since nobody asks it again."""
    found: list[str] = []
    for name, lines in FILES.items():
        gave_up = name == "sub.log" and outcome.cell.role == "subagent" and not ends_well(outcome.cell)
        there = outcome.files[name]
        if there != lines and not (gave_up and there == ()):
            found.append(f"{name} holds {there}, not {lines}")
    return found


def environment(folder: Path) -> dict[str, str]:
    """What the process must find in its environment."""
    homes = {f"XDG_{kind}_HOME": str(folder / kind.lower()) for kind in ("STATE", "DATA", "CONFIG")}
    return {**homes, "HOME": str(folder), "ANTHROPIC_API_KEY": KEY}
