"""Replay one session through one pipeline, with the core's rules, the request bytes, and the rehearsed prompt cache.

There is no engine and no HTTP, so thousands of steps take seconds. Each step is applied as the engine would journal it
(`apply`), each compaction is one that the rule `compaction` asks for, and each request is billed in full, including
those for summaries.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from context_bill import HEAD, HEAD_UNMARKED, OVERHEAD, Service, units
from context_player import Player, reply_of, summary_of
from context_session import Session, Work

from callboard.core.agent.apply import apply
from callboard.core.agent.rules.compaction import compact_view
from callboard.core.agent.state import AgentState, Facts
from callboard.core.context.cache.breakpoints import marks, with_marks
from callboard.core.context.stages.summarize import region_edits
from callboard.core.context.summary.request import shared_prefix_prompt, summary_edits, summary_request
from callboard.core.context.summary.shared_prefix import (
    MOST_DATA,
    SharingFacts,
    shared_prefix_messages,
    should_share_prefix,
    unsummarized_replies,
)
from callboard.core.context.view.conversation import message_tokens
from callboard.core.messaging.envelopes import envelope_block
from callboard.types import events as ev
from callboard.types import steps as st
from callboard.types.agent_spec import AgentSpec, ModelLimits, StageSpec
from callboard.types.messages import StateBlock, SummaryWanted
from callboard.types.records import Envelope, Json, ToolCall, Usage


@dataclass
class Played:
    """Cost and edits of a session."""

    steps: int = 0
    rereads: int = 0
    units: float = 0.0
    summary_units: float = 0.0
    edits: dict[str, int] = field(default_factory=dict[str, int])
    largest: int = 0
    """Number of tokens in the largest view."""
    trail: list[str] = field(default_factory=list[str])
    """Text of each edit, for a reader."""

    @property
    def share(self) -> float:
        """Return the share of rereads among the steps."""
        return self.rereads / self.steps if self.steps else 0.0


@dataclass
class Replay:
    """Agent that plays a session under a pipeline."""

    session: Session
    pipeline: Sequence[StageSpec]
    window: int = 200_000
    now: float = 1_000.0
    service: Service = field(default_factory=Service)
    played: Played = field(default_factory=Played)
    state: AgentState = field(default_factory=AgentState)
    mails: int = 0

    @property
    def limits(self) -> ModelLimits:
        return ModelLimits(window=self.window)

    def run(self) -> Played:
        """Play the session to its end."""
        spec = AgentSpec(name="lead", kind="lead", agent_type="lead", model="bench", models={"bench": self.limits})
        spec = spec.model_copy(update={"pipeline": tuple(self.pipeline)})
        self._on(ev.AgentStarted(at=self.now, spec=spec, session="s", incarnation=1))
        self._on(ev.PromptSet(at=self.now, system="s", tools="t", overhead_tokens=OVERHEAD))
        self._prompted(self.session.first)
        player = Player(self.session)
        while not player.done:
            self._compact()
            self._step(player)
        self.played.rereads = len(player.reread)
        self.played.trail.append(" ".join(player.reread))
        return self.played

    def _step(self, player: Player) -> None:
        conversation = self.state.context.conversation
        messages = with_marks(conversation, marks(conversation, self.state.costs.cycle, self.limits))
        head = HEAD if sum(piece.count(b'"cache_control"') for piece in messages) < 3 else HEAD_UNMARKED
        work = player.next(b"".join(messages))
        ordinal = self.state.model.ordinal + 1
        use_id = f"toolu_{ordinal:05}"
        blocks = reply_of(work, use_id)
        usage = self.service.call(messages, blocks, self.now, head)
        self.played.steps += 1
        self.played.units += units(usage)
        self.played.largest = max(self.played.largest, self.state.context.conversation.tokens)
        self._on(ev.ModelCalled(at=self.now, ordinal=ordinal, attempt=1, model="bench", max_tokens=8_000))
        calls = (ToolCall(id=use_id, use_id=use_id, name=work.tool, input=work.input),) if work.tool else ()
        self._on(
            ev.ModelReplied(
                at=self.now,
                ordinal=ordinal,
                model="bench",
                stop_reason="tool_use" if work.tool else "end_turn",
                blocks=tuple(blocks),
                calls=calls,
                usage=usage,
            )
        )
        self.now += work.idle
        self._answer(work, use_id)

    def _answer(self, work: Work, use_id: str) -> None:
        if not work.tool:
            assert self.state.turn is not None
            self._on(ev.TurnEnded(at=self.now, turn=self.state.turn.id, reason="end"))
            self._prompted(work.prompt)
            return
        content = ({"type": "text", "text": work.result},)
        self._on(ev.CallJudged(at=self.now, call=use_id, verdict="allow"))
        self._on(ev.ToolStarted(at=self.now, call=use_id, effect="read"))
        self._on(ev.ToolFinished(at=self.now, call=use_id, content=content))
        self._on(ev.ToolSettled(at=self.now, call=use_id))
        self._on(ev.ResultsMerged(at=self.now))

    def _prompted(self, text: str) -> None:
        self.mails += 1
        name = f"env_{self.mails}"
        envelope = Envelope(id=name, sender="person", recipient="lead", type="prompt", content=text, seq=self.mails)
        self._on(ev.EnvelopeReceived(at=self.now, envelope=envelope))
        self._on(ev.TurnBegan(at=self.now, turn=f"turn_{self.mails}", cause=name))
        self._on(ev.EnvelopesDelivered(at=self.now, ids=(name,), blocks=(envelope_block(envelope),)))

    def _compact(self) -> None:
        for _ in range(50):
            facts = Facts(now=self.now, folder="/out", transcripts="/t", known=StateBlock())
            match compact_view(self.state, facts):
                case st.EditView() as step:
                    self._edited(step)
                case st.SummarizeView() as step:
                    self._summarised(step)
                case None:
                    return
                case other:
                    raise AssertionError(f"unexpected step: {other}")
        raise AssertionError("compaction does not end")

    def _edited(self, step: st.EditView) -> None:
        before = message_tokens(self.state.context.conversation)
        revision = self.state.context.conversation.revision
        done = ev.ContextEdited(at=self.now, stage=step.stage, revision=revision, edits=step.edits, why=step.why)
        self._on(done)
        self._note(step.stage, before, step.why)

    def _summarised(self, step: st.SummarizeView) -> None:
        conv = self.state.context.conversation
        before = message_tokens(conv)
        wanted = step.wanted
        self._on(ev.SummaryBegan(at=self.now, wanted=wanted, revision=conv.revision, transcript="/t/1.jsonl"))
        text, usage = self._summary_call(wanted)
        self.played.units += units(usage)
        self.played.summary_units += units(usage)
        if wanted.stage == "summarize_regions":
            edits = region_edits(conv, wanted, text, state=StateBlock(), transcript="/t/1.jsonl", history=())
        else:
            edits = summary_edits(conv, wanted, text, state=StateBlock(), transcript="/t/1.jsonl", budget=self.window)
        if not edits:
            self._on(ev.SummaryFailed(at=self.now, why="it would not make the conversation smaller", usage=usage))
            return
        done = ev.ContextEdited(
            at=self.now,
            stage=wanted.stage,
            revision=conv.revision,
            edits=tuple(edits),
            usage=usage,
            why=wanted.why,
        )
        self._on(done)
        self._note("summary", before, wanted.why)

    def _summary_call(self, wanted: SummaryWanted) -> tuple[str, Usage]:
        """Bill a summary as the engine requests it: at the end of the conversation if cheaper, otherwise alone."""
        conv = self.state.context.conversation
        prompts = summary_request(conv, wanted, MOST_DATA)
        text = summary_of("\n\n".join(prompt.data for prompt in prompts), wanted.max_tokens)
        said: list[Json] = [{"type": "text", "text": text}]
        if should_share_prefix(conv, wanted, SharingFacts(self.limits, None, self.state.costs.cache, self.now)):
            asked = shared_prefix_messages(
                conv, shared_prefix_prompt(wanted, replies_kept=unsummarized_replies(conv, wanted.last))
            )
            return text, self.service.call(asked, said, self.now)
        usage = Usage()
        for prompt in prompts:
            head = b'"system":%s,"tools":[]' % prompt.system()
            usage = usage.plus(self.service.call(prompt.messages(), said, self.now, head))
        return text, usage

    def _note(self, what: str, before: int, why: str) -> None:
        self.played.edits[what] = self.played.edits.get(what, 0) + 1
        after = message_tokens(self.state.context.conversation)
        self.played.trail.append(f"step {self.played.steps}: {what} {before} -> {after} {why}")

    def _on(self, event: ev.Event) -> None:
        self.state = apply(self.state, event)
        if len(self.state.inbox.mail) > 8:
            self.state = replace(self.state, inbox=replace(self.state.inbox, mail=()))
