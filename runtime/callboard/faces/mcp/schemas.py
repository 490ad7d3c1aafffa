"""What `callboard mcp serve` declares: the input and the result of each tool, as JSON schemas. Plain data."""

from __future__ import annotations

from callboard.words.values import Json

LONGEST_WAIT = 3_600
"""Seconds that one call may wait."""


def fields(*required: str, **properties: Json) -> Json:
    """An object with these fields and no others."""
    return {
        "type": "object",
        "properties": properties,
        "required": list(required),
        "additionalProperties": False,
    }


def text(description: str, **more: object) -> Json:
    """A text field."""
    return {"type": "string", "description": description, **more}


def whole(description: str) -> Json:
    """A whole number or nothing."""
    return {"type": ["integer", "null"], "description": description}


def rows(of: Json, description: str) -> Json:
    """A list."""
    return {"type": "array", "items": of, "description": description}


def result(**properties: Json) -> Json:
    """A result with all of these fields; more may come in later versions."""
    return {"type": "object", "properties": properties, "required": list(properties)}


ANY: Json = {"type": "object"}

WORKSPACE = text("The folder that the session works in, one of those that are served. Leave it out for the usual one.")
SESSION = text("A session's id, or a beginning of it. Leave it out for the one that was started last.")
WAIT: Json = {
    "type": "number",
    "minimum": 0,
    "maximum": LONGEST_WAIT,
    "description": "Seconds to wait for the end, or for something that needs an answer; 0 returns at once. Progress is "
    "reported meanwhile. The session goes on when the time is over or the call is cancelled.",
}
REQUEST = text("The request's id, as `plans` tells it, or a beginning of it.", minLength=1)

ASKED = result(
    id=text("Its id, for show, approve, reject and answer."),
    kind=text("plan, permission or question."),
    **{"from": text("The agent that asks.")},
    about=text("In one line."),
    status=text("pending, or how it ended."),
    digest=text("Of its content: give it to approve, and only what you have seen is approved."),
    until={"type": ["number", "null"], "description": "When it ends in no (Unix seconds)."},
)

STANDS = result(
    session=text("The session's id."),
    workspace=text("The folder that it works in."),
    state=text(
        "working; waiting (something needs an answer, see `requests`); done; failed; stopped (cut short, and nobody "
        "hosts it: `send` goes on with it).",
        enum=["working", "waiting", "done", "failed", "stopped"],
    ),
    host=whole("The process that hosts it now."),
    text=text("The lead's last words: the result, once the state is done."),
    why=text("What went wrong; empty when nothing did."),
    exit_code=whole(
        "As of `callboard run`: 0 done, 4 nobody answered, 5 budget or limit, 6 model service unavailable."
    ),
    cost_usd={"type": "number", "description": "What it cost so far."},
    requests=rows(ASKED, "What waits for an answer."),
    next=text("What to do now."),
)

LISTED = result(
    sessions=rows(
        result(
            session=text("Its id."),
            began={"type": "number", "description": "Unix seconds."},
            state=text("open, done or failed."),
            prompt=text("The first words of the person."),
            model=text("The lead's model."),
        ),
        "The newest first.",
    )
)
