"""Screens of permissions: how a call would be decided, the rules of the settings, and the decisions of one session.

Texts are those of `callboard policy` (`cli/views/policy.py`). A rule of a session is revoked through `RuleInspector`.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from urllib.parse import urlencode

import anyio.to_thread
import htpy as h
from htpy import Element, Node
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from callboard.cli.terminal.terminal import Line
from callboard.cli.views.permission import spell_out
from callboard.cli.views.policy import answer_words, call_block, lint_block, revoked_words, tried_block
from callboard.core.keys import rows_prefix
from callboard.core.permissions.call_input import MODES
from callboard.core.permissions.explain import meaning_of
from callboard.core.permissions.lint import CheckedExample, LintFinding, WrittenRule
from callboard.core.reports.decisions import Decision
from callboard.sessions.handle import SessionHandle
from callboard.sessions.inspect.decisions import DecisionReader
from callboard.sessions.inspect.inspector import handle_of
from callboard.sessions.inspect.policy import (
    CallQuestion,
    EffectiveSettings,
    ExplainedCall,
    WorkspaceJudge,
    explain_question,
    in_force,
    lint,
    try_examples,
    written_rules,
)
from callboard.sessions.inspect.resources import RULES, RuleStatus
from callboard.types.errors import UsageError
from callboard.types.lazy_dataclass import dataclass
from callboard.types.records import SessionRule
from callboard.web.agent import agent_path
from callboard.web.guard import EVENTS, visit_of
from callboard.web.html import (
    Viewer,
    WebPage,
    brief,
    chosen,
    clock,
    field,
    form,
    path_of,
    session_title,
    shown_lines,
    table,
)
from callboard.web.routes import EventStream, PageServices, row_stream, viewer_of

PATH = "/policy"
_REST = 2.0
"""Seconds between two messages: each reads journals."""
_PAGE = 100
"""Decisions of one page."""
_CALL = 200
_STYLES: Mapping[str, str] = {"allow": "good", "ask": "warn", "deny": "bad"}


def decisions_path(session: str) -> str:
    """Return the path of the screen of a session's decisions."""
    return path_of("sessions", session, "decisions")


# The policy of the workspace


@dataclass(frozen=True, slots=True)
class _InForce:
    """Settings in force, and what is wrong with them."""

    settings: EffectiveSettings
    rules: Sequence[WrittenRule]
    findings: Sequence[LintFinding]
    examples: Sequence[CheckedExample]
    answer: ExplainedCall | None
    refused: str
    """Reason why the call cannot be explained; empty if it can, or if there is none."""


def _read(services: PageServices, question: CallQuestion) -> _InForce:
    """Read the settings, and judge the call. Reads the disk."""
    workspace = services.places.workspace
    force = in_force(workspace)
    every = in_force(workspace, trust=True)
    judge = WorkspaceJudge(workspace, every)
    answer = None
    refused = ""
    if question.text:
        try:
            answer = explain_question(force, question)
        except UsageError as wrong:
            refused = str(wrong)
    return _InForce(force, written_rules(force), lint(every, judge), list(try_examples(every, judge)), answer, refused)


def _policy_page(in_use: _InForce, question: CallQuestion) -> WebPage:
    fragments = {
        "explain": _explain_section(in_use, question),
        "rules": _rules_section(in_use),
        "findings": _findings_section(in_use),
    }
    return WebPage("Policy", PATH, fragments, follows=False)


def _explain_section(in_use: _InForce, question: CallQuestion) -> Element:
    types = [(name, spell_out(name)) for name in in_use.settings.agents]
    modes = [("", "that of the agent type"), *((mode, mode) for mode in MODES)]
    return h.section("#explain")[
        h.h2["How would a call be decided?"],
        h.p(".about")["Nothing is run, and nobody is asked."],
        h.form(method="get", action=PATH, aria_label="Explain a call")[
            field(
                "Call",
                h.input(name="call", value=spell_out(question.text), required=True),
                "a shell command; for another tool its input as JSON, or a path",
            ),
            h.div(".row")[
                field("Tool", h.input(name="tool", value=spell_out(question.tool), size="14")),
                field("Agent type", chosen("agent_type", types, question.agent_type)),
                field("Mode", chosen("mode", modes, question.mode)),
            ],
            h.div(".buttons")[h.button(".primary", type="submit")["Explain"]],
        ],
        h.p(".about.bad")[spell_out(in_use.refused)] if in_use.refused else None,
        shown_lines(_answer_lines(in_use, question, in_use.answer)) if in_use.answer is not None else None,
    ]


def _answer_lines(in_use: _InForce, question: CallQuestion, answer: ExplainedCall) -> Sequence[Line]:
    whose = f"agent type {question.agent_type}, {answer.rules} rules in force"
    return call_block(answer.report, question.text, whose=whose, hooks=answer.hooks, inert=in_use.settings.inert).lines


def _rules_section(in_use: _InForce) -> Element:
    force = in_use.settings
    rows = [
        (
            h.span(class_=f"state {_STYLES[rule.kind]}")[rule.kind],
            h.code[spell_out(rule.text)],
            spell_out(rule.scope) or "every agent",
            spell_out(rule.place),
        )
        for rule in in_use.rules
    ]
    mode = force.agents["lead"][0] if "lead" in force.agents else force.loaded.settings.permission.mode
    return h.section("#rules")[
        h.h2["Rules of the settings"],
        h.p(".about")[f"Mode {mode}. Deny rules win over ask rules, and these over allow rules."],
        h.p(".about.warn")[spell_out(force.inert)] if force.inert else None,
        table(("Kind", "Rule", "For", "From"), rows, nothing="The settings have no permission rules."),
    ]


def _findings_section(in_use: _InForce) -> Element:
    return h.section("#findings")[
        h.h2["Check of rules and hooks"],
        shown_lines(lint_block(in_use.findings).lines),
        shown_lines(tried_block(in_use.examples).lines) if in_use.examples else None,
    ]


# Decisions of one session


@dataclass(frozen=True, slots=True)
class _Filter:
    """Choice of decisions from the query."""

    agent: str = ""
    denied: bool = False
    skip: int = 0

    def fits(self, decision: Decision) -> bool:
        """Return True for a decision that the page lists."""
        return (not self.denied or decision.runs is False) and self.agent in ("", decision.agent)

    def query(self, **changes: object) -> str:
        """Return the query with these changes, with `?`; empty for no choice."""
        values = {"agent": self.agent, "denied": "1" if self.denied else "", "skip": self.skip or "", **changes}
        text = urlencode({name: value for name, value in values.items() if value})
        return f"?{text}" if text else ""


def _decisions_page(handle: SessionHandle, decisions: Sequence[Decision], choice: _Filter, viewer: Viewer) -> WebPage:
    path = decisions_path(handle.id)
    listed = [decision for decision in reversed(decisions) if choice.fits(decision)]
    shown = listed[choice.skip : choice.skip + _PAGE]
    title = session_title(handle.id, handle.row.prompt)
    names = sorted({decision.agent for decision in decisions if decision.agent})
    fragments = {
        "always": _session_rules(path, handle.rules.all(), viewer),
        "decisions": h.section("#decisions")[
            h.h2["Decisions"],
            _filter_form(path, choice, names),
            table(
                ("When", "Agent", "Call", "Decision", "By", "Answer"),
                [_decision_cells(handle.id, decision, viewer) for decision in shown],
                nothing="There are no decisions yet." if not decisions else "No decision fits.",
            ),
            _pages(path, choice, len(listed)),
        ],
    }
    back = (path_of("sessions", handle.id), "Session")
    return WebPage(f"Decisions: {title}", path, fragments, back=back, query=choice.query())


def _filter_form(path: str, choice: _Filter, names: Sequence[str]) -> Element:
    options = [("", "every agent"), *((name, spell_out(name)) for name in names)]
    return h.form(".row", method="get", action=path, aria_label="Choose decisions")[
        field("Agent", chosen("agent", options, choice.agent)),
        h.label(".check")[
            h.input(type="checkbox", name="denied", value="1", checked=choice.denied), " only what did not run"
        ],
        h.button(type="submit")["Show"],
    ]


def _pages(path: str, choice: _Filter, count: int) -> Node:
    newer = max(choice.skip - _PAGE, 0)
    last = min(choice.skip + _PAGE, count)
    if count <= _PAGE and not choice.skip:
        return None
    return h.p(".links")[
        f"{choice.skip + 1:,} to {last:,} of {count:,}",
        h.a(href=path + choice.query(skip=newer or ""))["Newer"] if choice.skip else None,
        h.a(href=path + choice.query(skip=last))["Older"] if last < count else None,
    ]


def _decision_cells(session: str, decision: Decision, viewer: Viewer) -> Sequence[Node]:
    agent = h.a(href=agent_path(session, decision.agent))[spell_out(decision.agent)] if decision.agent else ""
    reason = decision.why or meaning_of(decision.by)
    return (
        clock(decision.at, viewer),
        agent,
        [h.b[spell_out(decision.tool)], " ", h.code[brief(decision.about, _CALL)]],
        h.span(class_=f"state {_STYLES[decision.verdict]}")[decision.verdict],
        [spell_out(decision.by), h.div(".about")[brief(reason, _CALL)] if reason else None],
        answer_words(decision).replace("_", " "),
    )


def _session_rules(path: str, rules: Sequence[SessionRule], viewer: Viewer) -> Element:
    now = time.time()
    rows = [RuleStatus(rule, now) for rule in rules]
    _, cells = RULES.cells(rows, ("RULE", "FOR", "UNTIL"))
    return h.section("#always", aria_label="Rules of the session")[
        [
            h.h2["Rules of this session"],
            h.p(".about")["Made by answers with “always”, or by a client."],
            table(
                ("Rule", "For", "Until", ""),
                [
                    (h.code[spell_out(rule)], spell_out(whose), spell_out(until), _revoke(path, row, viewer))
                    for row, (rule, whose, until) in zip(rules, cells, strict=True)
                ],
                nothing="",
            ),
        ]
        if rules
        else None
    ]


def _revoke(path: str, rule: SessionRule, viewer: Viewer) -> Node:
    if rule.revoked_at is not None:
        return ""
    fields = h.input(type="hidden", name="rule", value=rule.id)
    return form(viewer, f"{path}/revoke", fields, h.button(".danger", type="submit")["Revoke"], label="Revoke")


class _PolicyRoutes:
    """Handlers of requests."""

    def __init__(self, services: PageServices) -> None:
        self._services = services

    async def policy(self, request: Request) -> Response:
        """Show the policy of the workspace, and explain the call of the query."""
        query = request.query_params
        question = CallQuestion(
            query.get("call", "").strip(),
            query.get("tool", "").strip() or "bash",
            query.get("mode", ""),
            query.get("agent_type", "") or "lead",
        )
        in_use = await anyio.to_thread.run_sync(_read, self._services, question)
        return self._services.page(request, _policy_page(in_use, question))

    async def decisions(self, request: Request) -> Response:
        """Show the decisions of a session, the newest first."""
        return self._services.page(request, await self._decisions(request)())

    async def follow(self, request: Request) -> EventStream:
        """Follow the decisions of a session."""
        session = (await handle_of(self._services.store, request.path_params["session"])).id
        prefixes = {f"{rows_prefix(session)}{kind}/": "" for kind in ("agent", "rule", "request")}
        return row_stream(self._services.store, prefixes, self._decisions(request), rest=_REST)

    async def revoke(self, request: Request) -> Response:
        """Revoke a rule of a session."""
        handle = await handle_of(self._services.store, request.path_params["session"])
        revoked = await handle.rules.revoke(visit_of(request).form.get("rule", ""))
        return self._services.done(request, f"{revoked_words(revoked)}.", decisions_path(handle.id))

    def _decisions(self, request: Request) -> Callable[[], Awaitable[WebPage]]:
        """Return the function that makes the page. It reads each event once."""
        store = self._services.store
        readers: dict[str, DecisionReader] = {}
        query = request.query_params
        skip = query.get("skip", "")
        if skip and not skip.isdecimal():
            raise UsageError(f"skip: {skip!r} is not a number")
        choice = _Filter(query.get("agent", ""), bool(query.get("denied")), int(skip or 0))

        async def page() -> WebPage:
            handle = await handle_of(store, request.path_params["session"])
            reader = readers.setdefault(handle.id, DecisionReader(store, handle.id))
            decisions = await reader.read(handle.agent_rows(), refused=True)
            return _decisions_page(handle, decisions, choice, viewer_of(request))

        return page


def policy_routes(services: PageServices) -> list[Route]:
    """Return the routes of both screens, and the one that revokes a rule."""
    routes = _PolicyRoutes(services)
    decisions = "/sessions/{session}/decisions"
    return [
        Route(PATH, routes.policy),
        Route(decisions, routes.decisions),
        Route(f"{decisions}{EVENTS}", routes.follow),
        Route(f"{decisions}/revoke", routes.revoke, methods=["POST"]),
    ]
