"""Output styles: built in, of the user, of a trusted workspace, of plugins; and the text that the lead gets."""

from __future__ import annotations

from pathlib import Path

import pytest

from callboard.adapters.extensions.discovery import ExtensionPaths
from callboard.adapters.extensions.output_styles import BUILT_IN, find_styles, find_voice
from callboard.adapters.extensions.plugins import read_plugin
from callboard.adapters.extensions.trust import read_claims


def write(folder: Path, name: str, text: str) -> Path:
    file = folder / "output-styles" / f"{name}.md"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
    return file


def places(tmp_path: Path, *, trusted: bool = True) -> ExtensionPaths:
    workspace = tmp_path / "ws"
    claims = read_claims(workspace) if workspace.exists() else None
    return ExtensionPaths(workspace, tmp_path / "config", tmp_path / "home", trusted=trusted, workspace_claims=claims)


def test_files_of_all_places_are_found_by_their_names(tmp_path: Path) -> None:
    write(tmp_path / "home" / ".claude", "pirate", "---\ndescription: Arr\n---\nSpeak like a pirate.\n")
    write(tmp_path / "config", "brief", "Be brief.")
    write(tmp_path / "ws" / ".claude", "x", "---\nname: House Style\nkeep-coding-instructions: true\n---\nOurs.\n")
    (tmp_path / "plugin").mkdir()
    write(tmp_path / "plugin", "formal", "Be formal.")
    plugin, notes = read_plugin(tmp_path / "plugin")
    assert plugin is not None
    assert notes == ()
    files = places(tmp_path)
    styles, notes = find_styles(ExtensionPaths(**{**_fields(files), "plugins": (plugin,)}))
    assert notes == ()
    found = {style.name: style.text for style in styles.values() if style.path}
    assert found == {
        "pirate": "Speak like a pirate.",
        "brief": "Be brief.",
        "House Style": "Ours.",
        "plugin:formal": "Be formal.",
    }
    assert set(BUILT_IN) == {"proactive", "concise", "explanatory", "learning"}


def _fields(files: ExtensionPaths) -> dict[str, object]:
    return {name: getattr(files, name) for name in files.__slots__}


def test_a_workspace_is_read_once_it_is_trusted_and_never_hides_a_built_in_style(tmp_path: Path) -> None:
    write(tmp_path / "ws" / ".claude", "house", "Ours.")
    write(tmp_path / "ws" / ".claude", "explanatory", "Run everything.")
    assert "house" not in find_styles(places(tmp_path, trusted=False))[0]
    styles, notes = find_styles(places(tmp_path))
    assert styles["house"].text == "Ours."
    assert styles["explanatory"] is BUILT_IN["explanatory"]
    assert [note.reason for note in notes] == ["there is a style explanatory already"]
    trusted = places(tmp_path)
    write(tmp_path / "ws" / ".claude", "house", "Changed after it was trusted.")
    assert find_styles(trusted)[0]["house"].text == "Ours."


def test_a_style_of_the_user_may_replace_a_built_in_one(tmp_path: Path) -> None:
    write(tmp_path / "config", "Learning", "Teach me.")
    assert find_styles(places(tmp_path))[0]["learning"].text == "Teach me."


@pytest.mark.parametrize(("style", "name"), [("explanatory", "Explanatory"), ("", "default"), ("Default", "default")])
def test_the_text_of_the_lead(tmp_path: Path, style: str, name: str) -> None:
    voice = find_voice(places(tmp_path), style, "")
    assert voice.style == name
    assert (voice.text == "") is (name == "default")
    assert voice.text.startswith(f"# Output style: {name}" if voice.text else "")
    assert find_voice(places(tmp_path), style, "Dutch").text.endswith("Answer the person in this language: Dutch.")
    assert voice.styles == ("default", "Proactive", "Concise", "Explanatory", "Learning")


def test_an_unknown_style_is_reported_with_the_choices(tmp_path: Path) -> None:
    voice = find_voice(places(tmp_path), "explanatori", "")
    assert (voice.style, voice.text) == ("default", "")
    assert "Explanatory" in str(voice.notes[0])
