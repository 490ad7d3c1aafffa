"""Bodies of HTTP responses: limited in size, and with every character valid.

A server that cuts a text may write half of an emoji as an escape, or a byte that is not UTF-8. The SDK refuses such a
message as a whole, so that the call loses its result. Here the half becomes a replacement character.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator

import httpx2

from callboard.types.late_pattern import late_pattern

_ESCAPE = late_pattern(
    rb"\\(?:u(?P<pair>d[89ab][0-9a-f]{2}\\ud[c-f][0-9a-f]{2})|u(?P<half>d[89a-f][0-9a-f]{2})|.)",
    re.IGNORECASE | re.DOTALL,
)
_BOM = b"\xef\xbb\xbf"


class BoundedBody(httpx2.AsyncByteStream):
    """Body of a response, limited to this number of bytes."""

    def __init__(self, body: httpx2.AsyncByteStream, most: int) -> None:
        self._body = body
        self._most = most

    async def __aiter__(self) -> AsyncIterator[bytes]:
        read = 0
        async for data in self._body:
            read += len(data)
            if read > self._most:
                raise httpx2.StreamError(f"the answer has over {self._most:,} bytes")
            yield data

    async def aclose(self) -> None:
        await self._body.aclose()


class ValidText(httpx2.AsyncByteStream):
    """Body of a response that is JSON, or events with JSON, passed on in whole lines of valid UTF-8.

    A line of over `longest` bytes is passed on in parts, unchanged: its reader refuses it.
    """

    def __init__(self, body: httpx2.AsyncByteStream, longest: int) -> None:
        self._body = body
        self._longest = longest

    async def __aiter__(self) -> AsyncIterator[bytes]:
        held = bytearray()
        first = True
        async for data in self._body:
            end = max(data.rfind(b"\n"), data.rfind(b"\r")) + 1
            if end:
                yield valid(bytes(held + data[:end]), first=first)
                held.clear()
                first = False
            held += data[end:]
            if len(held) > self._longest:
                yield bytes(held)
                held.clear()
                first = False
        if held:
            yield valid(bytes(held), first=first)

    async def aclose(self) -> None:
        await self._body.aclose()


def valid(text: bytes, *, first: bool = False) -> bytes:
    """Return JSON with a replacement character for each invalid byte and each half of a surrogate pair.

    `first`: a byte order mark at the beginning is removed.
    """
    text = text.removeprefix(_BOM) if first else text
    text = text.decode(errors="replace").encode()
    if b"\\ud" not in text and b"\\uD" not in text:
        return text
    return _ESCAPE.sub(lambda match: b"\\ufffd" if match["half"] else match[0], text)
