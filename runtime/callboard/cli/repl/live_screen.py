"""Screen for the prompt line: the lead's text appears block by block while it streams, rendered if there is colour.

The unfinished sentence is shown at the line.

Output of other agents is folded while the prompt line lists them: it goes to their streams (`AgentStreams`), and only
what needs the person is printed, an answer to the person, and one line for an agent that has ended or reported. Without
that list, everything is printed line by line.

Each text appears once. Only whole blocks of Markdown are printed while a text streams. A stream is provisional: pieces
may be lost, and a reply may turn out to be void. The complete text at the end decides what is still to be printed, and
whether the text on the screen has gaps. Discarded text is marked as void.

The decision (`Streamed`, `whole_until`) is pure. This module does not draw: the owner of the line requests the texts.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from dataclasses import field, replace

from callboard.cli.repl.agent_streams import AgentStreams
from callboard.cli.terminal.frame import broken, echo_line
from callboard.cli.terminal.screen import Screen
from callboard.cli.terminal.terminal import Block, Line, Terminal, block, columns, plain
from callboard.cli.views.agents import AgentEnd, ended_line, tokens_of
from callboard.cli.views.events import mail_line
from callboard.core.agent.state import AgentState
from callboard.core.context.summary.folding import text_of as placed_text
from callboard.core.keys import subagent_suffix
from callboard.core.replies import ReplyText, reply_text
from callboard.ports.environment import Interest
from callboard.ports.model import Delta
from callboard.ports.notifier import Notifier
from callboard.types.events import (
    AgentResumed,
    AgentStopped,
    CallFailed,
    EnvelopeReceived,
    EnvelopesDelivered,
    Event,
    ModelReplied,
    ReplyDropped,
    ReplyInterrupted,
    Reported,
    StuckNoticed,
    ToolFinished,
    TurnEnded,
)
from callboard.types.late_pattern import late_pattern
from callboard.types.lazy_dataclass import dataclass
from callboard.types.records import Envelope, ToolCall, Usage

PERSON = "person"
"""Sender of what a person writes."""
_EARLIER = 20
"""Limit of the lines of an earlier answer that are shown when a session continues."""
_TAIL_ROWS = 4
_TAIL_KEPT = 4_000
"""Limit of the characters of an unfinished sentence that are shown."""
_GAPS = "[parts of the text above were lost; the complete text from there on:]"


class LiveScreen(Screen):
    """Prints events, and keeps the texts around the prompt line."""

    def __init__(
        self,
        terminal: Terminal,
        *,
        verbose: bool,
        redraw: Callable[[], None] = lambda: None,
        lists_agents: Callable[[], bool] = lambda: False,
    ) -> None:
        """`redraw` is called when a text around the prompt line has changed.

        `lists_agents`: returns True while the prompt line shows the agents at work.
        """
        super().__init__(terminal, result_apart=False, verbose=verbose)
        self._detail = "whole" if verbose else "folded"
        self._redraw = redraw
        self._lists_agents = lists_agents
        self._streamed = Streamed()
        self._apart = False
        """True if something else streamed since the last text."""
        self._shows_earlier = False
        """True if the end of the conversation before this process is on the screen."""
        self._turn_ends = Notifier()
        self.streams = AgentStreams()
        self._prompts: set[str] = set()
        """Prompts of the person to other agents that are not delivered yet, by id."""
        self._answering: set[str] = set()
        """Agents whose turn answers the person: their text is printed."""
        self._answers: dict[str, str] = {}
        """Latest text of each agent that answered the person."""
        self._reported: set[str] = set()
        """Agents whose report is printed."""
        self._reasons: dict[str, str] = {}
        """Reason why an agent's last turn ended, if the model did not end it."""
        self._ended: set[str] = set()
        """Suffixes of the names of subagents whose end is printed: the result of their call would repeat it."""

    @property
    def _folds(self) -> bool:
        return not self._verbose and self._lists_agents()

    def earlier(self, state: AgentState) -> Block:
        """Return the end of the conversation so far: the person's last prompt, and the lead's answer, shortened."""
        blocks = [block for message in state.context.conversation.messages for block in message.blocks]
        prompts = [text for item in blocks if item.source == "person" and (text := placed_text(item).strip())]
        asked = echo_line(prompts[-1]).lines if prompts else ()
        said = state.turns.last_text if state.turn is None else ""  # else it answers an earlier prompt
        answer = self._text_block("lead", said).lines if said.strip() else ()
        hidden = len(answer) - _EARLIER
        note = (Line(f"  … {hidden} more {'line' if hidden == 1 else 'lines'}", "dim"),) if hidden > 0 else ()
        return Block((*asked, *answer[:_EARLIER], *note))

    def _resumed(self, output: Block | None) -> Block | None:
        """Return the line of the lead's resume, after the end of the conversation so far if that was not shown yet."""
        state = self._known.state("lead") if self._known is not None else None
        if output is None or state is None or self._shows_earlier:
            return output
        self._shows_earlier = True
        return Block((*self.earlier(state).lines, *output.lines), progress=True)

    interest = Interest(deltas=frozenset({"text", "thinking", "tool", "dropped", "notice"}))

    def on_delta(self, agent: str, delta: Delta) -> None:
        """Print the blocks that are complete; mark the streamed text as void if the service reports that."""
        if agent != "lead":
            self._stream_delta(agent, delta)
            return
        if delta.kind == "dropped" and self._streamed.begun:
            text = f"partial reply dropped: {delta.text}. What lead said above since its last whole reply is void"
            self._print(block(text, "warn", name=agent))
        else:
            super().on_delta(agent, delta)
        match delta.kind:
            case "text":
                self._stream_text(delta.text)
                self._redraw()
            case "dropped":
                self._streamed.drop()
                self._redraw()
            case "tool" | "thinking":
                self._apart = True
            case _:
                return

    def _stream_delta(self, agent: str, delta: Delta) -> None:
        """Add a piece of another agent's reply to its stream."""
        if delta.kind == "text":
            self.streams.add_text(agent, delta.text)
        elif delta.kind == "dropped":
            self.streams.end_text(agent)
            self.streams.add(agent, [Line(f"partial reply dropped: {plain(delta.text)}", "warn")])
        if delta.kind != "dropped" or not self._folds:
            super().on_delta(agent, delta)
        if delta.kind in ("text", "dropped"):
            self._redraw()

    def _stream_text(self, text: str) -> None:
        if self._apart and self._streamed.text:
            text = f"\n{text}"
        self._apart = False
        begun = self._streamed.begun
        if (piece := self._streamed.add(text)) is not None:
            self._print(self._piece_block("lead", piece, first=not begun))

    def on_event(self, agent: str, seq: int, event: Event) -> None:
        """Print the event's lines; a streaming text is now complete or void."""
        self._note_person(agent, event)
        super().on_event(agent, seq, event)
        if isinstance(event, ReplyDropped | CallFailed | TurnEnded):
            if agent == "lead":
                self._streamed.drop()
            else:
                self.streams.end_text(agent)
        if isinstance(event, TurnEnded | AgentStopped):
            self._answering.discard(agent)
            self._turn_ends.notify()
        self._redraw()

    def _note_person(self, agent: str, event: Event) -> None:
        """Note that an agent's turn answers a prompt of the person."""
        match event:
            case EnvelopeReceived(envelope=Envelope(sender="person", type="prompt") as prompt, refused=""):
                if agent != "lead":
                    self._prompts.add(prompt.id)
            case EnvelopesDelivered(ids=ids) if not self._prompts.isdisjoint(ids):
                self._prompts.difference_update(ids)
                self._answering.add(agent)
            case _:
                pass

    async def turn_over(self) -> None:
        """Wait until the next turn of an agent ends."""
        await self._turn_ends.changed(self._turn_ends.changes)

    def tail(self, width: int, rows: int) -> str:
        """Return the end of the lead's unfinished output, in rows of that width."""
        return tail_rows(self._streamed.tail, width, max(1, min(_TAIL_ROWS, rows // 6)))

    def _lines(self, agent: str, event: Event, calls: Mapping[str, ToolCall]) -> Block | None:
        output = self._whole_lines(agent, event, calls)
        if agent == "lead":
            return None if self._folds and self._is_told(event) else output
        if output is not None:
            self.streams.add(agent, output.lines)
        if isinstance(event, ModelReplied | ReplyInterrupted):
            self.streams.end_text(agent)
        if isinstance(event, AgentStopped):
            self.streams.end(agent)
        return self._folded_lines(agent, event, output) if self._folds else output

    def _folded_lines(self, agent: str, event: Event, output: Block | None) -> Block | None:
        """Return the part of another agent's lines that stays on the screen.

        These are warnings that advise the person, an answer to the person, its report, and its end.
        """
        match event:
            case ModelReplied() | ReplyInterrupted() if agent in self._answering:
                self._answers[agent] = reply_text(event.blocks) if isinstance(event, ModelReplied) else event.text
                return output
            case ModelReplied() | ReplyInterrupted():
                return None
            case Reported() if self._answers.pop(agent, "").strip() == event.result.strip():
                return None  # the person has read it as the answer
            case TurnEnded() if self._label(agent) != agent:
                self._reasons[agent] = "" if event.reason == "end" else event.why or event.reason
                return None  # the line of its end has the reason
            case StuckNoticed() if self._label(agent) != agent:
                return None  # as above
            case Reported():
                self._reported.add(agent)
                turn = self._known.turn_of(agent) if self._known is not None else None
                end = AgentEnd(outcome=f"reported {event.status}", text=event.result)
                return self._end_block(agent, end, event.at, turn)
            case AgentStopped():
                self._ended.add(f"-{agent.rpartition('-')[2]}")
                reason = self._reasons.pop(agent, "")
                text = "" if agent in self._reported else reason or event.result
                self._reported.discard(agent)
                row = self._known.row_of(agent) if self._known is not None else None
                life = (row.created_at, self._known.life_usage(row)) if self._known is not None and row else None
                return self._end_block(agent, AgentEnd(outcome=event.outcome, text=text), event.at, life)
            case _:
                return None if output is None or output.progress else output

    def _end_block(self, agent: str, end: AgentEnd, now: float, work: tuple[float, Usage] | None) -> Block:
        """Return the line of an agent that has ended or reported. `work`: the start of its work, and its usage."""
        began, usage = work or (0.0, Usage())
        row = self._known.row_of(agent) if self._known is not None else None
        end = replace(
            end,
            name=self._label(agent),
            seconds=now - began if began else 0.0,
            tokens=tokens_of(usage),
            role=row.role if row is not None else "",
        )
        return Block((ended_line(end, shutil.get_terminal_size().columns),), progress=True)

    def _is_told(self, event: Event) -> bool:
        """Return True if the line of a subagent's end has already told the result of this call."""
        suffix = subagent_suffix(event.call) if isinstance(event, ToolFinished) else ""
        told = suffix in self._ended
        self._ended.discard(suffix)
        return told

    def _end_of_turn(self, agent: str, event: TurnEnded) -> None:
        if agent == "lead" or not self._folds or agent in self._answering:
            super()._end_of_turn(agent, event)
            return
        speech = self._said.pop(agent, ReplyText())
        if event.text and event.text.strip() != speech.text:
            self.streams.add(agent, self._text_block(agent, event.text).lines)

    def _print_mail(self, envelope: Envelope, output: Block) -> None:
        names = {"sender": self._label(envelope.sender), "recipient": self._label(envelope.recipient)}
        output = mail_line(envelope.model_copy(update=names)) or output
        for agent in dict.fromkeys((envelope.sender, envelope.recipient)):
            if agent not in ("lead", PERSON):
                self.streams.add(agent, output.lines)
        if not self._folds or envelope.type == "scheduled":
            super()._print_mail(envelope, output)

    def _print(self, output: Block) -> None:
        lines = [replace(line, name=self._label(line.name)) if line.name else line for line in output.lines]
        super()._print(replace(output, lines=tuple(lines)))

    def _label(self, agent: str) -> str:
        return agent if self._known is None else self._known.label(agent)

    def _whole_lines(self, agent: str, event: Event, calls: Mapping[str, ToolCall]) -> Block | None:
        match event:
            case AgentResumed() if agent == "lead":
                return self._resumed(super()._lines(agent, event, calls))
            case ModelReplied():
                return self._remaining(agent, reply_text(event.blocks))
            case ReplyInterrupted():
                remaining = self._remaining(agent, event.text)
                mark = Line("[interrupted]", "warn", "" if remaining else agent)
                return Block((*(remaining.lines if remaining else ()), mark)) if event.text else None
            case _:
                return super()._lines(agent, event, calls)

    def _remaining(self, agent: str, text: str) -> Block | None:
        """Return the part of the text that is not on the screen yet."""
        if agent != "lead":
            return self._text_block(agent, text.strip("\n")) if text.strip() else None
        begun = self._streamed.begun
        piece, lost = self._streamed.end(text)
        if lost:
            lines = self._piece_block(agent, piece, first=True).lines if piece else ()
            return Block((Line(_GAPS, "warn", agent), *lines))
        return self._piece_block(agent, piece, first=not begun) if piece else None

    def _text_block(self, agent: str, text: str) -> Block:
        return self._piece_block(agent, PrintablePart(text), first=True)

    def _piece_block(self, agent: str, piece: PrintablePart, *, first: bool) -> Block:
        """Return a piece as it is shown here.

        The lead's name precedes the first piece of a text; later pieces begin with an empty line if the text has one.
        """
        text = plain(piece.text).rstrip("\n")
        content = text.lstrip("\n")
        gap = (Line(""),) * (not first and content != text)
        if not self._terminal.paints:
            lines = block(content).lines
        else:
            # rich takes 200 ms to import, and a screen without colour does not need it.
            from callboard.cli.terminal.markdown import render_markdown  # noqa: PLC0415 - see above

            whole = f"{piece.inside}\n{content}" if piece.inside else content
            width = shutil.get_terminal_size().columns - columns(agent) - 1
            lines = render_markdown(whole, width)
        named = replace(lines[0], name=agent) if lines else Line("", name=agent)
        return Block((*gap, named if first else lines[0], *lines[1:]) if lines else gap)


def tail_rows(text: str, width: int, rows: int) -> str:
    """Return the last rows of a text, broken between words, with one column left free."""
    lines = [line for line in plain(text[-_TAIL_KEPT:]).expandtabs(4).split("\n") if line.strip()]
    tail: list[str] = []
    for line in reversed(lines):
        tail[:0] = [row.text for row in broken(Line(line), max(1, width - 1))]
        if len(tail) >= rows:
            break
    return "\n".join(tail[-rows:])


LONG = 40
"""Lines after which a block is printed in parts, so that a long listing is not held back until its end."""
_FENCE = late_pattern(r"(\s*)(`{3,}|~{3,})(.*)")
_ITEM = late_pattern(r"([-*+]|\d{1,9}[.)]) ")


@dataclass(frozen=True, slots=True)
class PrintablePart:
    """Part of a text that may be printed. `inside`: the line that opened the code block in which it begins."""

    text: str
    inside: str = ""


@dataclass(slots=True)
class Streamed:
    """Streaming text. `more` and `end` return the part to be printed now."""

    text: str = ""
    _done: int = 0
    """Number of printed characters of `text`."""
    _inside: str = ""
    _ends: list[int] = field(default_factory=list[int])
    """Ends of the printed pieces."""

    @property
    def tail(self) -> str:
        """Return the received text that is not printed yet."""
        return self.text[self._done :]

    @property
    def begun(self) -> bool:
        """Return True if part of the text is on the screen."""
        return self._done > 0

    def add(self, text: str) -> PrintablePart | None:
        """Add this text, and return the part that is complete now."""
        looks = "\n" in self.text[-1:] + text
        self.text += text
        if not looks:
            return None
        cut, inside = whole_until(self.tail, self._inside)
        if not self.text[self._done : self._done + cut].strip():
            return None
        piece = PrintablePart(self.text[self._done : self._done + cut], self._inside)
        self._done, self._inside = self._done + cut, inside
        self._ends.append(self._done)
        return piece

    def end(self, whole: str) -> tuple[PrintablePart | None, bool]:
        """End the stream, and return the part of the complete text still to be printed.

        Also return True if the printed text has gaps from some position on: then the rest begins there.
        """
        printed = self.text[: self._done]
        inside = self._inside
        agreed, at = _matched(printed, whole)
        lost = agreed < len(printed)
        if lost:
            before = max((end for end in self._ends if end <= agreed), default=0)
            _, at = _matched(printed[:before], whole)
            inside = ""
        at += printed.endswith("\n") and whole[at : at + 1] == "\n"
        self.text = ""
        self._done = 0
        self._inside = ""
        self._ends = []
        remaining = whole[at:].rstrip()
        return (
            PrintablePart(remaining if printed and not lost else remaining.lstrip("\n"), inside)
            if remaining.strip()
            else None
        ), lost

    def drop(self) -> bool:
        """Mark the text as void; return True if part of it is on the screen."""
        begun = self.begun
        self.text = ""
        self._done = 0
        self._inside = ""
        self._ends = []
        return begun


def whole_until(text: str, inside: str = "") -> tuple[int, str]:
    """Return how many characters of a text are whole blocks, and the line that opened the code block there, if any.

    A block ends before an empty line that is followed by an unindented line (an indented one may belong to a list),
    before and after an unindented code block, and, when it is long, before the next item or line of code.
    """
    scan = _Scan(inside=inside, fence=inside)
    at = 0
    while (end := text.find("\n", at)) >= 0:
        line = text[at:end]
        at = end + 1
        scan.begins(line)
        scan.end_line(line, at)
    if at < len(text):
        scan.begins(text[at:])
    return scan.cut, scan.inside


@dataclass(slots=True)
class _Scan:
    """Positions where a text may be cut, found line by line.

    `inside`: the opening line of the code block at `cut`; `fence`: of the one at the current position.
    """

    inside: str
    fence: str
    cut: int = 0
    lines: int = 0
    """Number of lines since `cut`."""
    text_end: int = 0
    """End of the last line that is not empty."""
    empty: bool = False
    """True if the previous line was empty."""

    def begins(self, line: str) -> None:
        """Process the start of a line, which may be incomplete."""
        if self.fence or not self.text_end or not line or line[0].isspace():
            return
        if self.empty or _opens(line) or (self.lines >= LONG and _ITEM.match(line)):
            self._cut(self.text_end, "")

    def end_line(self, line: str, end: int) -> None:
        """Process the end of that line; `end` is the position after its line break."""
        self.lines += 1
        if self.fence:
            self._in_code(line, end)
        elif _opens(line):
            self.fence = line
        self.empty = not line.strip() and not self.fence
        if not self.empty:
            self.text_end = end

    def _in_code(self, line: str, end: int) -> None:
        at_margin = not self.fence[0].isspace()
        if _closes(line, self.fence):
            self.fence = ""
        elif self.lines < LONG:
            return
        if at_margin:
            self._cut(end, self.fence)

    def _cut(self, at: int, inside: str) -> None:
        self.cut = at
        self.inside = inside
        self.lines = 0


def _opens(line: str) -> bool:
    match = _FENCE.match(line)
    return match is not None and not (match[2][0] == "`" and "`" in match[3])


def _closes(line: str, opened: str) -> bool:
    opener = _FENCE.match(opened)
    closer = _FENCE.match(line)
    if opener is None or closer is None or closer[3].strip():
        return False
    return closer[2].startswith(opener[2])


def _matched(printed: str, whole: str) -> tuple[int, int]:
    """Return how far the printed text agrees with the complete one, and the position in the complete one.

    White space is ignored.
    """
    printed_at = whole_at = 0
    while True:
        while printed_at < len(printed) and printed[printed_at].isspace():
            printed_at += 1
        if printed_at == len(printed):
            return printed_at, whole_at
        step = whole_at
        while step < len(whole) and whole[step].isspace():
            step += 1
        if step == len(whole) or whole[step] != printed[printed_at]:
            return printed_at, whole_at
        printed_at += 1
        whole_at = step + 1
