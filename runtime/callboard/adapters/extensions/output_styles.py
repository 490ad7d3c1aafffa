"""Output styles: texts on the manner in which the lead answers. The setting `output_style` chooses one by name.

Four styles are built in. Others are the files `*.md` in the folders `output-styles` of the user, of the workspace once
it is trusted, and of plugins: front matter with `name` and `description`, then the text. A file hides a built-in style
of the same name only if it is the user's own. The text is added to the lead's instructions, which stay: they are about
the team, and not about code.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import cast

from callboard.adapters.extensions.discovery import DiscoveryNote, ExtensionPaths, agent_paths, read_text, sources
from callboard.adapters.extensions.yaml import load_front_document
from callboard.types.choices import unknown
from callboard.types.errors import SettingsError
from callboard.types.lazy_dataclass import dataclass

DEFAULT = "default"


@dataclass(frozen=True, slots=True)
class OutputStyle:
    """One style."""

    name: str
    description: str
    text: str
    path: str = ""
    """Its file; empty: it is built in."""


def _built_in(name: str, description: str, *lines: str) -> OutputStyle:
    return OutputStyle(name, description, "\n".join(lines))


BUILT_IN: Mapping[str, OutputStyle] = MappingProxyType(
    {
        style.name.lower(): style
        for style in (
            _built_in(
                "Proactive",
                "Acts at once, and asks only where a wrong guess would be expensive",
                "Begin with the work instead of a proposal. Decide routine questions yourself, state the assumption in",
                "one line, and go on. Ask only if a wrong guess would lose work or cannot be undone. Permissions and",
                "approvals stay as they are.",
            ),
            _built_in(
                "Concise",
                "Answers with the result first, in few words",
                "Answer with the result in the first sentence. Leave out introductions, repetitions of the request and",
                "reports on each step. Say in one line what was checked and what is open. Do the work itself as",
                "thoroughly as ever.",
            ),
            _built_in(
                "Explanatory",
                "Explains choices and patterns of the code while it works",
                "Help the person to understand this code base while you work. Before and after an important change add",
                "a short block that begins with the line `Insight:` and has two or three points: why this way was",
                "chosen here, which pattern of the project it follows, what the alternatives cost. Write about this",
                "code, not about programming in general, and put nothing of it into files.",
            ),
            _built_in(
                "Learning",
                "Works together with the person, who writes small parts of the code",
                "Help the person to learn by doing. Explain as you go, with short blocks that begin with the line",
                "`Insight:`. Where a piece of five to ten lines decides something - business logic, error handling, an",
                "algorithm, an interface - leave it to the person: write the code around it, mark the place with",
                "`TODO(human)`, say which file and function it is, what it has to do and what to weigh, and end your",
                "turn. At most one such place is open at a time. Then read what the person wrote, say one thing that",
                "it teaches, and go on.",
            ),
        )
    }
)


def find_styles(places: ExtensionPaths) -> tuple[dict[str, OutputStyle], tuple[DiscoveryNote, ...]]:
    """Return all styles by name in lower case, and notes on files without effect."""
    styles: dict[str, OutputStyle] = {}
    notes: list[DiscoveryNote] = []
    for source in sources("output-styles", places):
        files = agent_paths(source)
        notes += files.notes
        for path in files.paths:
            try:
                document, body = load_front_document(read_text(source, path), str(path))
            except (OSError, KeyError, SettingsError) as error:
                notes.append(DiscoveryNote(str(path), "", "refused", str(getattr(error, "strerror", None) or error)))
                continue
            fields = cast("dict[str, object]", document.data) if isinstance(document.data, dict) else {}
            name = str(fields.get("name") or path.stem).strip()
            key = f"{source.plugin}:{name}" if source.plugin else name
            style = OutputStyle(key, str(fields.get("description") or ""), body.strip(), str(path))
            hides = key.lower() in BUILT_IN and source.scope != "person"
            if key.lower() in styles or hides or key.lower() == DEFAULT:
                notes.append(DiscoveryNote(str(path), "name", "ignored", f"there is a style {name} already"))
            else:
                styles[key.lower()] = style
    return {**BUILT_IN, **styles}, tuple(notes)


@dataclass(frozen=True, slots=True)
class Voice:
    """The manner of the lead's answers."""

    style: str = DEFAULT
    named: str = DEFAULT
    """Name in the settings, which clients of Claude Code's protocol receive, even if there is no such style."""
    styles: tuple[str, ...] = (DEFAULT,)
    """Names of all styles."""
    text: str = ""
    """Text for the end of the lead's instructions."""
    notes: tuple[DiscoveryNote, ...] = ()


def find_voice(places: ExtensionPaths, style: str, language: str) -> Voice:
    """Return the style and the language in the settings. An unknown style is a note, and the default is used."""
    styles, notes = find_styles(places)
    names = (DEFAULT, *(entry.name for entry in styles.values()))
    parts = [f"# Language\nAnswer the person in this language: {language}."] if language else []
    chosen = styles.get(style.lower())
    if chosen is not None:
        parts.insert(0, f"# Output style: {chosen.name}\n{chosen.text}")
    elif style and style.lower() != DEFAULT:
        notes = (*notes, DiscoveryNote("output_style", "", "refused", unknown("style", style, names)))
    return Voice(chosen.name if chosen else DEFAULT, style or DEFAULT, names, "\n\n".join(parts), notes)
