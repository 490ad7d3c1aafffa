"""The last words of a turn as JSON of a schema: checked, asked for again where they are not, at most three times."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from callboard.app import End, OpenSession
from callboard.core.schema import check_input
from callboard.words.values import Json

TRIES = 3
"""How often an answer that does not fit is asked for again."""
_RETRIES = "error_max_structured_output_retries"


def schema_words(schema: Json) -> str:
    """What an agent is told at the start whose last words have to fit the schema."""
    return (
        "When you are done, answer with JSON alone, without a fence and without any word round it. It has to fit this "
        f"JSON schema:\n{json.dumps(schema)}"
    )


def structured(text: str, schema: Json) -> tuple[Any, str]:
    """The value that a text holds, and what is wrong with it; empty when it fits."""
    lines = text.strip().splitlines()
    fenced = len(lines) > 2 and lines[0].startswith("```") and lines[-1].strip() == "```"
    try:
        value = json.loads("\n".join(lines[1:-1] if fenced else lines))
    except (ValueError, RecursionError) as error:
        return None, f"it is not JSON: {error}"
    return value, check_input(schema, value, "answer") or ""


class Structured:
    """Waits for the end of a turn, and has its answer mended where a schema is asked for."""

    def __init__(self, session: OpenSession, schema: Json | None) -> None:
        self._session, self._schema = session, schema

    async def finished(self) -> tuple[End, Json]:
        """How the turn ended, and fields for its result."""
        end = await self._session.finished()
        if self._schema is None:
            return end, {}
        wrongs: Sequence[str] = ()
        while end.exit_code == 0:
            value, wrong = structured(end.text, self._schema)
            if not wrong:
                return end, {"structured_output": value}
            wrongs = (*wrongs, wrong)
            if len(wrongs) > TRIES:
                why = f"the answer did not fit the schema {len(wrongs)} times: {wrong}"
                return replace(end, exit_code=1, why=why), {
                    "subtype": _RETRIES,
                    "terminal_reason": "structured_output_retry_exhausted",
                    "errors": [why],
                }
            await self._session.say(f"Your answer does not fit: {wrong}. Answer again, with JSON of the schema alone.")
            end = await self._session.finished()
        return end, {}
