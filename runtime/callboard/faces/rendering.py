"""Markdown as lines for the screen: headings, lists, tables, highlighted code. The only importer of rich.

Rich decides about words and colours; what reaches the screen are pieces of text with the codes of a style
(`Line.spans`), never a sequence: the terminal writes those, after it has taken out what a model put into the text.

It refuses to know whose text it is, and whether there is colour.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterable, Sequence

from rich.color import ColorSystem
from rich.console import Console, ConsoleOptions, RenderResult
from rich.markdown import CodeBlock, Markdown, TextElement
from rich.segment import Segment
from rich.style import Style
from rich.syntax import Syntax
from rich.text import Text
from rich.theme import Theme

from callboard.faces.terminal import Line, Span, plain

LARGEST = 50_000
"""Characters over which a text is shown as it is: nobody looks at colours there, and they would take a second."""
NARROWEST = 20
"""Columns below which nothing is set anew."""
_THEME = "ansi_dark"
"""Sixteen colours, as the person's terminal shows them."""
_INDENT = "  "
_FENCED = re.compile(r"^(`{3,}|~{3,})([^\n]*)\n(.*?)(?:^\1[`~]*[ \t]*$\n?|\Z)", re.MULTILINE | re.DOTALL)
_CODES = re.compile(r"\x1b\[([0-9;]+)m")


class _Code(CodeBlock):
    """A code block in a list or a quotation: wrapped there, since it cannot run past the edge."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        code = str(self.text).rstrip()
        yield Syntax(code, self.lexer_name, theme=_THEME, word_wrap=True, background_color="default")


class _Heading(TextElement):
    """A heading at the left edge."""

    style_name = "strong"

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield Text.assemble(self.text, style=Style(bold=True, underline=True))


class _Prose(Markdown):
    elements = {**Markdown.elements, "fence": _Code, "code_block": _Code, "heading_open": _Heading}  # noqa: RUF012 (rich's table, read only)


def rendered(text: str, width: int) -> tuple[Line, ...]:
    """A text in Markdown as lines of at most `width` columns; code keeps its lines, however long. Never raises for
    what a text holds."""
    words = plain(text)
    if len(words) > LARGEST or width < NARROWEST:
        return tuple(Line(line) for line in words.split("\n"))
    console = Console(
        file=io.StringIO(),
        width=width,
        force_terminal=True,
        color_system="standard",
        no_color=False,
        theme=Theme({"markdown.code": "cyan", "markdown.code_block": "cyan"}),
        _environ={},
    )
    lines: list[Line] = []
    at = 0
    for found in _FENCED.finditer(words):
        _add(lines, _prose(console, words[at : found.start()]))
        _add(lines, _code(console, found[3], found[2].strip().split(" ")[0]))
        at = found.end()
    _add(lines, _prose(console, words[at:]))
    return tuple(lines)


def _add(lines: list[Line], more: Sequence[Line]) -> None:
    """An empty line between two parts."""
    if lines and more:
        lines.append(Line(""))
    lines.extend(more)


def _prose(console: Console, text: str) -> list[Line]:
    if not text.strip():
        return []
    rows = console.render_lines(_Prose(text, code_theme=_THEME, hyperlinks=False), pad=False)
    lines = [_line(row) for row in rows]
    while lines and not lines[-1].text:
        lines.pop()
    return [line for line, before in zip(lines, [Line(""), *lines], strict=False) if line.text or before.text]


def _code(console: Console, code: str, language: str) -> list[Line]:
    shown = Syntax("", language or "text", theme=_THEME, background_color="default").highlight(code.rstrip("\n"))
    return [_line([Segment(_INDENT), *row.render(console)]) for row in shown.split("\n", allow_blank=False)]


def _line(row: Iterable[Segment]) -> Line:
    """One row, without what fills it up at its end."""
    spans: list[Span] = []
    for segment in row:
        if segment.control or not segment.text:
            continue
        codes = _codes(segment.style)
        text = segment.text.replace("\n", "")
        if spans and spans[-1].codes == codes:
            text, codes = spans[-1].text + text, spans.pop().codes
        spans.append(Span(text, codes))
    while spans and not spans[-1].text.strip():
        spans.pop()
    if spans:
        spans[-1] = Span(spans[-1].text.rstrip(), spans[-1].codes)
    return Line("".join(span.text for span in spans), spans=tuple(spans))


def _codes(style: Style | None) -> str:
    """The codes of a style, such as `1;36`; empty for none."""
    if not style:
        return ""
    found = _CODES.match(style.render("x", color_system=ColorSystem.STANDARD))
    return found[1] if found else ""
