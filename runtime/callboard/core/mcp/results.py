"""Conversion of a server's answer to content blocks that are valid in any request, and cleaning of its texts.

Pure, and tolerant: the answer is untrusted.

Text stays, images become the API's image blocks (by their bytes, not by their declared type), and everything else is
described as text: audio, files, links. Nothing is refused: content that cannot be shown is named in its place. Texts of
servers are cut and cleaned before a person or a model sees them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any, cast

from callboard.core.context.view.sendable import image_block
from callboard.core.utf8 import storable_json
from callboard.types.late_pattern import late_pattern
from callboard.types.lazy_dataclass import dataclass
from callboard.types.records import Json

CHARACTERS_PER_TOKEN = 4
SHOWN_TOKENS = 25_000
"""Tokens shown of a result, unless `MAX_MCP_OUTPUT_TOKENS` sets another value."""
MOST_OF_ITS_OWN = 500_000
"""Maximum characters that a tool may request by its `_meta["anthropic/maxResultSizeChars"]`."""
MOST_BLOCKS = 200
"""Most blocks of a result whose texts stay apart. Servers in Python send a block for each item of a list."""
MOST_ITEMS = 100_000
"""Most blocks of an answer that are read."""
MOST_IMAGES = 20
EMPTY = "(no output)"


@dataclass(frozen=True, slots=True)
class ResultContent:
    """A result, ready for a request. `structured`: as received from the server, for hooks."""

    blocks: tuple[Json, ...]
    is_error: bool = False
    structured: Any = None

    @property
    def characters(self) -> int:
        """Return the number of characters in its texts."""
        return sum(len(str(block["text"])) for block in self.blocks if block["type"] == "text")


def answer_of(result: Mapping[str, Any]) -> ResultContent:
    """Convert the result of a `tools/call`, as the server sent it."""
    content = result.get("content")
    blocks = blocks_of(cast("Sequence[Any]", content) if isinstance(content, list) else (content,))
    structured = storable_json(result.get("structuredContent"))
    if structured is not None and not any(block["type"] == "text" for block in blocks):
        blocks += (_text(json.dumps(structured, ensure_ascii=False, indent=1)),)
    return ResultContent(blocks or (_text(EMPTY),), result.get("isError") is True, structured)


def blocks_of(content: Sequence[Any]) -> tuple[Json, ...]:
    """Return the content blocks of a result, a prompt or a resource. Empty texts are omitted: the API refuses them."""
    blocks: list[Json] = []
    images = 0
    for item in content[:MOST_ITEMS]:
        block = _block(item)
        images += block["type"] == "image"
        if images > MOST_IMAGES and block["type"] == "image":
            block = _text(f"[Image left out: only {MOST_IMAGES} of a result are shown.]")
        if block["type"] != "text" or block["text"].strip():
            blocks.append(block)
    if len(content) > MOST_ITEMS:
        blocks.append(_text(f"[{len(content) - MOST_ITEMS} more blocks left out.]"))
    return _join_texts(blocks) if len(blocks) > MOST_BLOCKS else tuple(blocks)


def _join_texts(blocks: Sequence[Json]) -> tuple[Json, ...]:
    """Return the blocks with each run of texts as one text of several lines."""
    joined: list[Json] = []
    for kind, group in groupby(blocks, key=lambda block: block["type"]):
        run = list(group)
        joined += [_text(whole_text(run))] if kind == "text" else run
    return tuple(joined)


def resource_blocks(contents: Sequence[Any]) -> tuple[Json, ...]:
    """Return the contents of a `resources/read`."""
    return blocks_of([{"type": "resource", "resource": content} for content in contents])


def shorten_texts(blocks: Sequence[Json], most: int, whole: str) -> tuple[Json, ...]:
    """Return head and tail of the texts, `most` characters together; images stay.

    The mark between them has the path of the file that contains the whole.
    """
    text = whole_text(blocks)
    half = most // 2
    mark = f"\n[Result cut: {most:,} of {len(text):,} characters. Whole: {whole}]\n"
    images = tuple(block for block in blocks if block["type"] != "text")
    return (_text(text[:half] + mark + text[len(text) - half :]), *images)


def whole_text(blocks: Sequence[Json]) -> str:
    """Return all texts of a result, in order."""
    return "\n".join(str(block["text"]) for block in blocks if block["type"] == "text")


def _block(item: object) -> Json:
    if item is None or isinstance(item, str):
        return _text(clean(item))
    if not isinstance(item, Mapping):
        return _text(f"[Left out: {one_line(repr(item))}]")
    content = cast("Json", item)
    kind = content.get("type")
    if kind == "text":
        text = content.get("text")
        return _text(clean(text) if text is None or isinstance(text, str) else one_line(json.dumps(text)))
    if kind == "image":
        return _image(content.get("data"), content.get("mimeType"))
    if kind == "audio":
        return _text(f"[Audio, {one_line(content.get('mimeType'), 80)}, {_size(content.get('data'))}: not shown.]")
    if kind == "resource" and isinstance(content.get("resource"), Mapping):
        return _resource(cast("Json", content["resource"]))
    if kind == "resource_link":
        return _link(content)
    return _text(f"[A block of the kind {one_line(repr(kind), 80)} is not shown.]")


def _resource(resource: Json) -> Json:
    uri = one_line(resource.get("uri"), 2_000)
    kind = one_line(resource.get("mimeType"), 80)
    named = f"{uri} ({kind})" if kind else uri
    if isinstance(resource.get("text"), str):
        return _text(f"[Resource {named}]\n{clean(resource['text'])}")
    if kind.startswith("image/"):
        return _image(resource.get("blob"), kind)
    return _text(f"[Resource {named}, {_size(resource.get('blob'))} that are no text: not shown.]")


def _link(content: Json) -> Json:
    parts = [one_line(content.get(name), 300) for name in ("title", "name", "description", "mimeType")]
    details = "; ".join(dict.fromkeys(word for word in parts if word))
    return _text(f"[Link to the resource {one_line(content.get('uri'), 2_000)}{f' ({details})' if details else ''}]")


def _image(data: object, called: object) -> Json:
    """Return an image block, or a text with the reason why it is not one."""
    image = image_block(data if isinstance(data, str) else "")
    if isinstance(image, dict):
        return image
    return _text(f"[Image left out: {_size(data)} called {one_line(called, 80)}: {image}.]")


def _size(data: object) -> str:
    return f"about {len(data) * 3 // 4:,} bytes" if isinstance(data, str) else "no bytes"


def _text(text: str) -> Json:
    return {"type": "text", "text": text}


LONGEST = 2_000
"""Maximum characters of a description or of a server's instructions (2 kB, as in other programs)."""
_UNWANTED = late_pattern("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\ud800-\udfff]")
"""Control characters other than tab, newline and carriage return, and lone surrogates, which are invalid in files and
requests."""


def clean(text: object) -> str:
    """Return a text without characters that are invalid in requests; empty for a value that is not text."""
    return _UNWANTED.sub("\N{REPLACEMENT CHARACTER}", text) if isinstance(text, str) else ""


def cut(text: object, most: int = LONGEST) -> str:
    """Return the cleaned text, at most `most` characters, with a mark where it was cut."""
    whole = clean(text)
    return whole if len(whole) <= most else f"{whole[: most - 12].rstrip()} [...cut...]"[:most]


def one_line(text: object, most: int = 300) -> str:
    """Return the cleaned text with whitespace collapsed to single spaces, cut."""
    return cut(" ".join(clean(text).split()), most)
