"""QR codes as lines of text: two rows of modules in one line, light modules filled, with a quiet zone around them."""

from __future__ import annotations

from callboard.cli.terminal.terminal import Block, Line
from callboard.types.errors import UsageError

_BORDER = 2
_HALVES = {(0, 0): "█", (0, 1): "▀", (1, 0): "▄", (1, 1): " "}
"""Dark modules of the upper and the lower row -> character. A terminal is dark, so light modules are drawn."""


def qr_block(text: str) -> Block:
    """Return the QR code of a text. Raises `UsageError` if the library for it is not installed."""
    try:
        import segno
    except ImportError as missing:
        raise UsageError("a QR code needs segno: pip install 'callboard[qr]'") from missing
    code = segno.make(text, error="l", micro=False, boost_error=False)
    rows = [[int(bool(module)) for module in row] for row in code.matrix_iter(border=_BORDER)]
    if len(rows) % 2:
        rows.append([0] * len(rows[0]))
    pairs = zip(rows[::2], rows[1::2], strict=True)
    return Block(tuple(Line("".join(_HALVES[pair] for pair in zip(*both, strict=True))) for both in pairs))
