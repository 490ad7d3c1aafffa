"""Final text of a turn as JSON, checked against a schema.

The text is requested again up to three times if it does not match.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from callboard.core.utf8 import strict_json
from callboard.sessions.base import OpenSession
from callboard.sessions.result import RunEnd
from callboard.types.records import Json

TRIES = 3
"""Number of times that an answer is requested again if it does not match the schema."""
_RETRIES = "error_max_structured_output_retries"


def schema_words(schema: Json) -> str:
    """Return the instructions for an agent whose final text must match the schema."""
    return (
        "When you are done, answer with JSON alone, without a fence and without any text around it. It has to fit this "
        f"JSON schema:\n{json.dumps(schema)}"
    )


def parse_structured(text: str, schema: Json) -> tuple[Any, str]:
    """Return the JSON value in a text, and the error if it does not match the schema.

    The error is empty if it matches.
    """
    from callboard.core.full_json_schema import answer_fault  # noqa: PLC0415 - most runs have no schema

    lines = text.strip().splitlines()
    fenced = len(lines) > 2 and lines[0].startswith("```") and lines[-1].strip() == "```"
    try:
        value = strict_json("\n".join(lines[1:-1] if fenced else lines))
    except (ValueError, RecursionError) as error:
        return None, f"it is not JSON: {error}"
    return value, answer_fault(schema, value)


class StructuredAnswer:
    """Wait for the end of a turn. With a schema, the agent corrects an answer that does not match."""

    def __init__(self, session: OpenSession, schema: Json | None) -> None:
        self._session = session
        self._schema = schema

    async def finished(self) -> tuple[RunEnd, Json]:
        """Return the end of the turn, and fields for its result."""
        end = await self._session.wait_finished()
        if self._schema is None:
            return end, {}
        wrongs: Sequence[str] = ()
        while end.exit_code == 0:
            value, wrong = parse_structured(end.text, self._schema)
            if not wrong:
                return end, {"structured_output": value}
            wrongs = (*wrongs, wrong)
            if len(wrongs) > TRIES:
                reason = f"the answer did not fit the schema {len(wrongs)} times: {wrong}"
                return replace(end, exit_code=1, why=reason), {
                    "subtype": _RETRIES,
                    "terminal_reason": "structured_output_retry_exhausted",
                    "errors": [reason],
                }
            await self._session.say(f"Your answer does not fit: {wrong}. Answer again, with JSON of the schema alone.")
            end = await self._session.wait_finished()
        return end, {}
