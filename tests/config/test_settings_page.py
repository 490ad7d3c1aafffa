"""The page of all settings."""

from __future__ import annotations

from tests.config.settings_page import PAGE, page
from tests.core.documented_fields import documented_fields

from callboard.types.settings import Settings
from callboard.types.settings_section import Section


def test_the_page_of_settings_is_what_the_classes_say() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), "run `python tests/config/settings_page.py`"


def test_every_setting_has_a_meaning_and_a_place_on_the_page() -> None:
    kinds = [*Section.__subclasses__(), *(each for kind in Section.__subclasses__() for each in kind.__subclasses__())]
    fields = [
        (kind.__name__, name, said)
        for kind in kinds
        if kind.__module__.startswith("callboard.types.")
        for name, _, _, said in documented_fields(kind)
    ]
    sections = set(Settings.model_fields) - {name for kind, name, said in fields if kind == "Settings" and said}
    assert [(kind, name) for kind, name, said in fields if not said and kind != "Settings"] == []
    text = page()
    assert all(f"## `{name}" in text for name in sections), "a setting without a docstring is a section"
    assert all(f"| `{name}` |" in text or f"## `{name}" in text for name in Settings.model_fields)
