"""The tools that `callboard mcp serve` offers: what each is called, says, takes, returns and does."""

from __future__ import annotations

from collections.abc import Sequence

from callboard.adapters.mcp.serving import Offered
from callboard.faces.mcp.schemas import (
    ANY,
    ASKED,
    LISTED,
    REQUEST,
    SESSION,
    STANDS,
    WAIT,
    WORKSPACE,
    fields,
    result,
    rows,
    text,
)
from callboard.faces.mcp.tools import Tools
from callboard.words.values import Json

INSTRUCTIONS = """Callboard runs a lead agent and its team on a piece of work in a folder.
`run` starts a session and returns its id; `wait` returns when it is done, or when something waits for an answer;
`status` tells how it stands. Plans and permissions that wait are listed by `plans` and shown whole by `show`: put them
to the person. A session goes on when a call is cancelled, and `callboard resume` goes on with it when this server has
ended."""

_WHERE: dict[str, Json] = {"session": SESSION, "workspace": WORKSPACE}
_DOLLARS = {"type": "number", "minimum": 0, "description": "Dollars that the session may cost at most."}


def offers(tools: Tools) -> Sequence[Offered]:
    """All of them."""
    return (*_sessions(tools), *_looking(tools), *_asked(tools), *_answering(tools))


def _sessions(tools: Tools) -> Sequence[Offered]:
    prompt = text("What is to be done: the whole of it, the session knows nothing else.", minLength=1)
    said = text("The message.", minLength=1)
    to = text("The agent that it is for; the lead, if left out.")
    return (
        Offered(
            "run",
            "Run a prompt",
            "Start a session: a lead agent does what the prompt asks, with a team where that helps. It returns at once "
            "with the session's id, unless wait_s says otherwise.",
            fields("prompt", prompt=prompt, workspace=WORKSPACE, wait_s=WAIT, max_cost_usd=_DOLLARS),
            STANDS,
            tools.run,
            destructive=True,
        ),
        Offered(
            "wait",
            "Wait for a session",
            "Wait until a session is done or something of it needs an answer, for wait_s seconds at most (45, if left "
            "out); how it stands then. Ask again as often as it takes.",
            fields(**_WHERE, wait_s=WAIT),
            STANDS,
            tools.wait,
            reads=True,
        ),
        Offered(
            "send",
            "Send a message",
            "Say something to the lead of a session or to a teammate, as the person. One at work hears it at its next "
            "step; a session that rests goes on with it.",
            fields("text", text=said, to=to, **_WHERE),
            STANDS,
            tools.send,
            destructive=True,
        ),
        Offered(
            "interrupt",
            "Interrupt a session",
            "Stop what the lead and everybody at work do now. The session stays: `send` goes on with it.",
            fields(**_WHERE),
            STANDS,
            tools.interrupt,
            destructive=True,
            idempotent=True,
        ),
    )


def _looking(tools: Tools) -> Sequence[Offered]:
    return (
        Offered(
            "status",
            "How a session stands",
            "How a session stands: what it does, its last words, what waits for an answer, what it cost.",
            fields(**_WHERE),
            STANDS,
            tools.status,
            reads=True,
        ),
        Offered(
            "sessions",
            "List sessions",
            "The sessions of a workspace, also those that others started.",
            fields(workspace=WORKSPACE),
            LISTED,
            tools.sessions,
            reads=True,
        ),
        Offered(
            "team",
            "Show the team",
            "The agents of a session: what each does or waits for, its tokens and cost.",
            fields(**_WHERE),
            result(session=text("Its id."), agents=rows(ANY, "The lead first.")),
            tools.team,
            reads=True,
        ),
        Offered(
            "cost",
            "Show the cost",
            "What a session spent, by agent and by model, and its budgets.",
            fields(**_WHERE),
            result(session=text("Its id."), cost=ANY),
            tools.cost,
            reads=True,
        ),
    )


def _asked(tools: Tools) -> Sequence[Offered]:
    every = {"type": "boolean", "description": "Also what was answered."}
    return (
        Offered(
            "plans",
            "What waits for an answer",
            "The plans, permissions and questions of a session that wait for an answer, the oldest first.",
            fields(all=every, **_WHERE),
            result(session=text("Its id."), requests=rows(ASKED, "The oldest first.")),
            tools.plans,
            reads=True,
        ),
        Offered(
            "show",
            "Show a request in full",
            "One plan, permission or question in full: its text, options, what differs from its last revision.",
            fields("request", request=REQUEST, **_WHERE),
            result(session=text("Its id."), request=ANY),
            tools.show,
            reads=True,
        ),
    )


def _answering(tools: Tools) -> Sequence[Offered]:
    digest = text("As `show` or `plans` tells it: only this content is approved. Leave it out for what stands there.")
    option = {"type": "integer", "minimum": 1, "description": "This one of a plan's options."}
    why = text("Words that the agent gets with it.")
    instead = text("What the agent should do instead; a plan needs it.")
    who = (
        "for the person: only when they have said so to you, and only if the server was started with --may-approve."
        if tools.may_approve
        else "for the person. This server was started without --may-approve: it refuses, and tells the person's way."
    )
    done = result(session=text("Its id."), request=ASKED, note=text("What else to know."))
    return (
        Offered(
            "approve",
            "Approve a plan or allow a tool",
            f"Approve a plan or allow a tool {who}",
            fields("request", request=REQUEST, option=option, digest=digest, why=why, **_WHERE),
            done,
            tools.approve,
            destructive=True,
        ),
        Offered(
            "reject",
            "Reject a plan or refuse a tool",
            f"Reject a plan or refuse a tool {who}",
            fields("request", request=REQUEST, why=instead, **_WHERE),
            done,
            tools.reject,
        ),
        Offered(
            "answer",
            "Answer a question",
            f"Answer an agent's question {who}",
            fields("request", "text", request=REQUEST, text=text("What it reads.", minLength=1), **_WHERE),
            done,
            tools.answer,
        ),
    )
