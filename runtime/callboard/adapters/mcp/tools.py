"""A server's tool as a Callboard tool: its description for the model, and its calls.

A server's annotations are its own claims: `readOnlyHint` only allows a call to run again after a crash. Every other
tool of a server has an unknown effect: after a crash this is reported, and the call is never run again.

A call ends by its hard timeout or after a silence, whichever comes first. Progress ends a silence. The time that the
user takes to answer the server's questions counts for neither.

A server's schema is repaired, because the service refuses a whole request for one invalid schema. Parts that the
metaschema of draft 2020-12 refuses are removed, and so are references that lead nowhere or to themselves, and fields
whose names the service does not accept. The rest of the schema and the tool remain; the tool's server checks again.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import field, replace
from pathlib import Path
from typing import Any, cast

import anyio

from callboard.core.json_schema import input_problem, schema_for_model
from callboard.core.mcp.results import ResultContent, cut, one_line, shorten_texts, whole_text
from callboard.core.mcp.tool_names import tool_name
from callboard.ports.tool import CallContext, Folders, ToolOutcome, ToolSpec
from callboard.types.errors import ToolRefused
from callboard.types.late_pattern import late_pattern
from callboard.types.lazy_dataclass import dataclass
from callboard.types.mcp import Elicitation, ElicitationAnswer
from callboard.types.records import Json

Call = Callable[[str, Json, CallContext], Awaitable[ResultContent]]
"""Function that calls a tool by the server's own name for it. Raises `ToolRefused`."""
ROUNDS = 8
"""Most times that a schema is checked again after a removal."""
_FIELD = late_pattern(r"[a-zA-Z0-9_.-]{1,64}")
"""Names of fields that the Messages API accepts. Its refusal of a request quotes this pattern."""
_REFERENCES = ("$ref", "$dynamicRef")
SchemaPath = tuple[str | int, ...]


@dataclass(frozen=True, slots=True)
class ToolDeclaration:
    """A tool as declared by its server. Equal declarations are the same tool."""

    server: str
    name: str
    """The server's own name for it."""
    spec: ToolSpec
    result_size: object = None
    """Characters of a result that the tool requests to be shown."""
    schema: str = ""
    """Mistakes in the tool's schema; empty for none."""


def read_declaration(server: str, entry: Json, seconds: float) -> ToolDeclaration | None:
    """Return a tool of a `tools/list`; None if it has no name. `seconds`: the longest silence of a call."""
    name = entry.get("name")
    if not isinstance(name, str) or not name.strip():
        return None
    schema, wrong = repaired_schema(entry.get("inputSchema"))
    hints = _object(entry.get("annotations"))
    meta = _object(entry.get("_meta"))
    reads = hints.get("readOnlyHint") is True
    spec = ToolSpec(
        tool_name(server, name),
        cut(entry.get("description")) or cut(entry.get("title") or hints.get("title")) or name,
        schema,
        "read" if reads else "unknown",
        "shared" if reads else "exclusive",
        # A tool without annotations may destroy data (the protocol's default), which is exactly the meaning of
        # `unknown`.
        destructive=hints.get("destructiveHint") is True and not reads,
        person_only=meta.get("anthropic/requiresUserInteraction") is True,
        always_load=meta.get("anthropic/alwaysLoad") is True,
        seconds=seconds,
    )
    return ToolDeclaration(server, name, spec, meta.get("anthropic/maxResultSizeChars"), wrong)


class ServerTool:
    """One tool of a server. Implements the port `Tool`."""

    def __init__(self, declared: ToolDeclaration, call: Call, most_characters: int) -> None:
        """Store the tool. `most_characters`: the most characters of a result that are shown."""
        self.declared = declared
        self._call = call
        self._shown = most_characters

    @property
    def spec(self) -> ToolSpec:
        return self.declared.spec

    def key(self, tool_input: Json, folders: Folders) -> str:
        return ""

    async def prepare(self, tool_input: Json, context: CallContext) -> Json:
        """Check the arguments, so that invalid ones are never sent."""
        if wrong := input_problem(self.spec.input_schema, tool_input):
            raise ToolRefused(wrong)
        return {}

    async def run(self, tool_input: Json, context: CallContext) -> ToolOutcome:
        answer = await self._call(self.declared.name, tool_input, context)
        blocks = answer.blocks
        data: Json = {"server": self.declared.server, "tool": self.declared.name}
        if answer.characters > self._shown:
            whole = await _keep(context.folders.tool_results, context.call, whole_text(blocks))
            blocks = shorten_texts(blocks, self._shown, str(whole))
            data["whole"] = str(whole)
        if answer.structured is not None:
            data["structuredContent"] = answer.structured
        if len(blocks) == 1 and blocks[0]["type"] == "text":
            return ToolOutcome(str(blocks[0]["text"]), answer.is_error, data=data)
        return ToolOutcome(blocks, answer.is_error, data=data)

    async def repair(self, tool_input: Json, marks: Json, context: CallContext) -> ToolOutcome | None:
        """After a crash, run the call again if the server declares it read-only; else report an unknown outcome."""
        if self.spec.effect == "read":
            return None
        return ToolOutcome(
            f"The runtime stopped while {self.spec.name} was under way at the server {self.declared.server}, so its "
            "outcome is unknown and it was not called again. Look at what it has done before you call it again.",
            is_error=True,
        )


async def _keep(folder: Path, call: str, text: str) -> Path:
    """Write the complete large result to a file that its agent can read."""
    path = folder / f"{call}.out"
    await anyio.Path(folder).mkdir(mode=0o700, parents=True, exist_ok=True)
    await anyio.Path(path).write_text(text, encoding="utf-8")
    return path


def _object(value: object) -> Mapping[str, Any]:
    return cast("Mapping[str, Any]", value) if isinstance(value, Mapping) else {}


A_WORD = 0.1
"""Seconds between two progress messages that are shown."""


@dataclass(slots=True)
class CallInFlight:
    """A call that a server is processing."""

    server: str
    context: CallContext
    most: float
    """Most seconds that it may take."""
    silence: float
    """Most seconds without progress."""
    scope: anyio.CancelScope = field(default_factory=anyio.CancelScope)
    _ends: float = math.inf
    _reported_at: float = -math.inf
    _asking: int = 0

    def begin(self) -> anyio.CancelScope:
        """Start the timeouts. Return the cancel scope for the request."""
        self._ends = anyio.current_time() + self.most
        self._wind()
        return self.scope

    @property
    def reason(self) -> str:
        """Return a text for the user with the timeout that ended the call."""
        if anyio.current_time() >= self._ends:
            return f"it took longer than {self.most:g} s"
        return f"the server said nothing for {self.silence:g} s"

    async def show_progress(self, progress: float, total: float | None, message: str | None) -> None:
        """Show the progress, and restart the silence timeout."""
        self._wind()
        if anyio.current_time() < self._reported_at + A_WORD:
            return
        self._reported_at = anyio.current_time()
        counted = f"{progress:g}" if total is None else f"{progress:g}/{total:g}"
        self.context.progress(f"{counted} {one_line(message)}".strip())

    async def ask(self, question: Elicitation) -> ElicitationAnswer:
        """Ask the user a question of the server. The timeouts are paused until the answer."""
        began = anyio.current_time()
        self._asking += 1
        self._wind()
        try:
            return await self.context.elicit(replace(question, server=self.server))
        finally:
            self._asking -= 1
            self._ends += anyio.current_time() - began
            self._wind()

    def _wind(self) -> None:
        self.scope.deadline = math.inf if self._asking else min(self._ends, anyio.current_time() + self.silence)


def repaired_schema(schema: object) -> tuple[Json, str]:
    """Return the schema in a form that any request can contain, and its mistakes; empty for none.

    Takes about a millisecond.
    """
    # Most sessions have no server, and the library takes a twentieth of a start to import.
    from callboard.core.full_json_schema import invalid_parts  # noqa: PLC0415 - see above

    result, wrong = schema_for_model(schema)
    if wrong:
        return result, wrong
    result = cast("Json", _copy(result))
    removed: list[str] = []
    for _ in range(ROUNDS):
        bad = {*invalid_parts(result), *_unusable(result)}
        if not bad:
            return result, _note(removed)
        if () in bad:
            break
        removed += [".".join(map(str, path)) for path in sorted(bad, key=str)]
        for path in sorted(
            bad, key=lambda address: (len(address), [str(part).rjust(9) for part in address]), reverse=True
        ):
            _take_out(result, path)
    return {"type": "object"}, "its schema is not a JSON schema"


def _note(removed: list[str]) -> str:
    if not removed:
        return ""
    suffix = f" and {len(removed) - 3} more" if len(removed) > 3 else ""
    return f"parts of its schema are invalid or cannot be sent, and were removed: {', '.join(removed[:3])}{suffix}"


def _unusable(schema: Json) -> Iterator[SchemaPath]:
    """Yield the places in a schema that the metaschema allows although they are unusable."""
    for path, node in _walk(schema, ()):
        fields = node.get("properties")
        if isinstance(fields, dict):
            names = cast("dict[str, object]", fields)
            yield from ((*path, "properties", name) for name in names if not _FIELD.fullmatch(name))
        if node.get("enum") == []:
            yield (*path, "enum")
        for word in _REFERENCES:
            if isinstance(node.get(word), str) and not _leads_somewhere(schema, node[word]):
                yield (*path, word)


def _walk(value: object, path: SchemaPath) -> Iterator[tuple[SchemaPath, Json]]:
    if isinstance(value, dict):
        node = cast("Json", value)
        yield path, node
        for name, inner in node.items():
            yield from _walk(inner, (*path, name))
    elif isinstance(value, list):
        for number, inner in enumerate(cast("list[object]", value)):
            yield from _walk(inner, (*path, number))


def _leads_somewhere(schema: Json, reference: str) -> bool:
    """Return True if a reference leads to a part of the schema, not only to a cycle of references."""
    seen: set[str] = set()
    while True:
        # A reference to itself would expand forever
        # (test_a_sound_schema_is_what_it_was_and_a_tree_may_refer_to_itself).
        if reference in seen:
            return False
        seen.add(reference)
        target = _target(schema, reference)
        if isinstance(target, bool):
            return True
        if not isinstance(target, Mapping):
            return False
        after = cast("Mapping[str, Any]", target).get("$ref")
        if not isinstance(after, str):
            return True
        reference = after


def _target(schema: Json, reference: str) -> object:
    """Return the target of a pointer (RFC 6901); None if the text is not a pointer, or leads out of the document."""
    if reference == "#":
        return {"type": "object"}
    if not reference.startswith("#/"):
        return None
    value: object = schema
    for part in reference[2:].split("/"):
        name = part.replace("~1", "/").replace("~0", "~")
        if isinstance(value, dict):
            value = cast("dict[str, object]", value).get(name)
        elif isinstance(value, list) and name.isdecimal() and int(name) < len(cast("list[object]", value)):
            value = cast("list[object]", value)[int(name)]
        else:
            return None
    return value


def _take_out(schema: Json, path: SchemaPath) -> None:
    value: Any = schema
    for part in path[:-1]:
        try:
            value = value[part]
        except (KeyError, IndexError, TypeError):
            return  # it was removed together with the part that contained it
    try:
        del value[path[-1]]
    except (KeyError, IndexError, TypeError):
        return
    required = schema.get("required") if path[:-1] == ("properties",) else None
    if isinstance(required, list) and path[-1] in required:
        cast("list[Any]", required).remove(path[-1])


def _copy(value: object) -> object:
    if isinstance(value, dict):
        return {name: _copy(inner) for name, inner in cast("Json", value).items()}
    if isinstance(value, list):
        return [_copy(inner) for inner in cast("list[object]", value)]
    return value
