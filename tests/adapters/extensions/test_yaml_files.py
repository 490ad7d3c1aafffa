"""YAML is read as people mean it, and mistakes are reported with file, line, and field."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from callboard.adapters.extensions.yaml import dotted_address, load_document, load_front_matter, load_yaml
from callboard.types.errors import SettingsError


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("no", "no"),
        ("on", "on"),
        ("Yes", "Yes"),
        ("2026-11-21", "2026-11-21"),
        ("12:30:00", "12:30:00"),
        ("0123", "0123"),
        ("1_000", "1_000"),
        ("true", True),
        ("False", False),
        ("null", None),
        ("~", None),
        ("", None),
        ("42", 42),
        ("-3", -3),
        ("1.5", 1.5),
        ("2.", 2.0),
        ("'1'", "1"),
        ('"true"', "true"),
        ("0x1F", "0x1F"),
        (".inf", ".inf"),
    ],
)
def test_a_plain_word_stays_what_it_looks_like(written: str, meant: object) -> None:
    assert load_yaml(f"field: {written}\n") == {"field": meant}


def test_in_front_matter_a_version_number_stays_text() -> None:
    fields, _ = load_front_matter("---\nversion: 1.10\ncount: 7\n---\n")
    assert fields == {"version": "1.10", "count": 7}


def test_an_empty_text_is_nothing() -> None:
    assert load_yaml("") is None
    assert load_yaml("# a comment\n") is None


def test_a_key_written_twice_is_refused_with_its_place() -> None:
    with pytest.raises(SettingsError) as caught:
        load_yaml("a: 1\nb:\n  c: 1\n  c: 2\n", "team.yaml")
    assert str(caught.value) == "team.yaml:4: b.c: is written twice; keep one of the two"
    assert caught.value.where == "team.yaml:4: b.c"


def test_broken_yaml_names_the_line() -> None:
    with pytest.raises(SettingsError, match=r"^team\.yaml:2: is not valid YAML"):
        load_yaml("a: 1\nb: [1, 2\n", "team.yaml")


@pytest.mark.parametrize(
    "text", ["a: !!python/object/apply:os.system [x]\n", "a: !mine {}\n", "? [a, b]\n: 1\n", "a: \x07\n"]
)
def test_what_builds_objects_or_is_no_text_is_refused(text: str) -> None:
    with pytest.raises(SettingsError):
        load_yaml(text)


def test_aliases_that_multiply_are_refused_quickly() -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 10)]
    with pytest.raises(SettingsError) as caught:
        load_yaml("\n".join(lines), "team.yaml")
    expands = "has aliases that expand to more than 200,000 values: write out what you need instead"
    assert str(caught.value) == f"team.yaml:6: {expands}"


@pytest.mark.slow
def test_too_many_values_and_levels_are_named_as_such() -> None:
    with pytest.raises(SettingsError, match=r"^team\.yaml:1: holds more than 200,000 values$"):
        load_yaml(f"[{'x,' * 200_001}]", "team.yaml")
    with pytest.raises(SettingsError, match=r"^team\.yaml:1: is nested more than 60 levels deep$"):
        load_yaml("[" * 100 + "]" * 100, "team.yaml")


def test_a_value_that_holds_itself_is_refused() -> None:
    with pytest.raises(SettingsError, match=r"^team\.yaml:1: refers to itself: the alias \*a is inside the value"):
        load_yaml("a: &a [*a]\n", "team.yaml")


def test_every_value_knows_its_line(tmp_path: Path) -> None:
    path = tmp_path / "s.yaml"
    path.write_text("name: x\nagents:\n  lead:\n    - reply: hello\n")
    document = load_document(path)
    assert document.place(("agents", "lead", 0, "reply")) == f"{path}:4: agents.lead[0].reply"
    assert document.place(("agents", "lead", 0, "missing")) == f"{path}:4: agents.lead[0].missing"
    assert document.place() == f"{path}:1"


def test_files_that_cannot_be_read_are_told(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="cannot be read"):
        load_yaml(tmp_path / "absent.yaml")
    (tmp_path / "latin.yaml").write_bytes(b"a: 1\nb: caf\xe9\n")
    with pytest.raises(SettingsError, match=r"latin\.yaml:2: is not UTF-8 text"):
        load_yaml(tmp_path / "latin.yaml")


def test_front_matter_and_body_come_apart() -> None:
    fields, body = load_front_matter("---\nname: explore\ntools: [a, b]\n---\n\n# You explore\n---\nmore\n")
    assert fields == {"name": "explore", "tools": ["a", "b"]}
    assert body == "\n# You explore\n---\nmore\n"


def test_a_file_without_front_matter_is_all_body() -> None:
    assert load_front_matter("# Title\n---\n") == ({}, "# Title\n---\n")
    assert load_front_matter("") == ({}, "")


def test_empty_front_matter_holds_no_fields() -> None:
    assert load_front_matter("---\n---\nbody") == ({}, "body")


def test_marks_of_other_editors_do_no_harm() -> None:
    fields, body = load_front_matter("\ufeff---\r\nname: a\r\ndescription: b\r\n---\r\nbody\r\n")
    assert fields == {"name": "a", "description": "b"}
    assert body == "body\r\n"


@pytest.mark.parametrize(
    "value",
    ["Use when: asked", "Fix it # now", "it's: fine", "ends with:", "*", "@someone: else", "%d: percent"],
)
def test_a_doubtful_plain_value_is_taken_as_the_text_it_is(value: str) -> None:
    fields, _ = load_front_matter(f"---\nname: a\ndescription: {value}\nnote: and: this\n---\n")
    assert fields["description"] == value
    assert fields["note"] == "and: this"


def test_front_matter_mistakes_have_the_line_of_the_file() -> None:
    with pytest.raises(SettingsError, match=r"^a\.md:3: name: is written twice"):
        load_front_matter("---\nname: a\nname: b\n---\n", "a.md")
    with pytest.raises(SettingsError, match="never closed"):
        load_front_matter("---\nname: a\n", "a.md")
    with pytest.raises(SettingsError, match="mapping of fields"):
        load_front_matter("---\n- a\n---\n", "a.md")
    with pytest.raises(SettingsError, match=r"^a\.md:\d: is not valid YAML"):
        load_front_matter("---\nname: [a\n---\n", "a.md")


def test_an_address_reads_as_people_write_it() -> None:
    assert dotted_address(("agents", "lead", 2, "reply", 0)) == "agents.lead[2].reply[0]"


@settings(max_examples=150, deadline=None)
@given(st.text(max_size=200))
def test_no_text_whatever_raises_anything_but_a_settings_error(text: str) -> None:
    for load, source in ((load_yaml, text), (load_front_matter, text), (load_front_matter, f"---\n{text}\n---\n")):
        with suppress(SettingsError):
            load(source)
