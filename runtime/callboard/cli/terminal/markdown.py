"""Markdown as lines for the screen: headings, lists, tables, highlighted code. The only importer of rich.

Rich determines text and colours. Its output consists of pieces of text with the codes of a style (`Line.spans`), never
of sequences: the terminal writes those, after it has removed any from the model's text.

The author of a text, and the use of colour, are unknown here.
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

from callboard.cli.terminal.terminal import Line, Span, plain
from callboard.types.late_pattern import late_pattern

LARGEST = 50_000
"""Characters above which a text is shown unformatted: colours are not useful there, and would take a second."""
NARROWEST = 20
"""Columns below which nothing is reformatted."""
_THEME = "ansi_dark"
"""Theme of sixteen colours, as the person's terminal shows them."""
_INDENT = "  "
_FENCED = late_pattern(r"^(`{3,}|~{3,})([^\n]*)\n(.*?)(?:^\1[`~]*[ \t]*$\n?|\Z)", re.MULTILINE | re.DOTALL)
_CODES = late_pattern(r"\x1b\[([0-9;]+)m")


class _Code(CodeBlock):
    """Code block in a list or a quotation: wrapped there, since it cannot extend past the edge."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        code = str(self.text).rstrip()
        yield Syntax(code, self.lexer_name, theme=_THEME, word_wrap=True, background_color="default")


class _Heading(TextElement):
    """Heading at the left edge."""

    style_name = "strong"

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield Text.assemble(self.text, style=Style(bold=True, underline=True))


class _Prose(Markdown):
    elements = {**Markdown.elements, "fence": _Code, "code_block": _Code, "heading_open": _Heading}  # noqa: RUF012 - rich's table, which is only read


def render_markdown(text: str, width: int) -> tuple[Line, ...]:
    """Return a Markdown text as lines of at most `width` columns; code keeps its lines, however long.

    Never raises for any content.
    """
    content = plain(text)
    if len(content) > LARGEST or width < NARROWEST:
        return tuple(Line(line) for line in content.split("\n"))
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
    for match in _FENCED.finditer(content):
        _add(lines, _prose(console, content[at : match.start()]))
        _add(lines, _code(console, match[3], match[2].strip().split(" ")[0]))
        at = match.end()
    _add(lines, _prose(console, content[at:]))
    return tuple(lines)


def _add(lines: list[Line], added: Sequence[Line]) -> None:
    """Append the lines, with an empty line between two parts."""
    if lines and added:
        lines.append(Line(""))
    lines.extend(added)


def _prose(console: Console, text: str) -> list[Line]:
    if not text.strip():
        return []
    rows = console.render_lines(_Prose(text, code_theme=_THEME, hyperlinks=False), pad=False)
    lines = [_line(row) for row in rows]
    while lines and not lines[-1].text:
        lines.pop()
    return [line for line, before in zip(lines, [Line(""), *lines], strict=False) if line.text or before.text]


def _code(console: Console, code: str, language: str) -> list[Line]:
    highlighted = Syntax("", language or "text", theme=_THEME, background_color="default").highlight(code.rstrip("\n"))
    return [_line([Segment(_INDENT), *row.render(console)]) for row in highlighted.split("\n", allow_blank=False)]


def _line(row: Iterable[Segment]) -> Line:
    """Return one row without its trailing padding."""
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
    """Return the codes of a style, such as `1;36`; empty for none."""
    if not style:
        return ""
    match = _CODES.match(style.render("x", color_system=ColorSystem.STANDARD))
    return match[1] if match else ""
