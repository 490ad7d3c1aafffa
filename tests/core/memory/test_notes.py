"""Notes of memory as values: their text, the index, what is merged, and which of them a turn is about."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as hy

from callboard.adapters.extensions.yaml import load_front_matter
from callboard.core.memory.note import (
    INDEX_BYTES,
    INDEX_LINES,
    LONGEST,
    Note,
    faults_of,
    merge_notes,
    name_fault,
    note_of,
    prompt_part,
    text_of,
    update_index,
)
from callboard.core.memory.relevance import MOST, chosen, terms

DEPLOY = Note(
    "deploy-steps", "How the service is deployed to staging", "project", "Run make ship, then watch the canary."
)
TABS = Note("indentation", "The person wants tabs in Go and blanks elsewhere", "feedback", "Told on Monday.")
PEOPLE = Note(
    "who-owns-what", "Owners of the parts of the repository", "reference", "Ada owns the parser, Bo the billing."
)
NOTES = [(note.name, note) for note in (DEPLOY, TABS, PEOPLE)]
LINES = hy.text(hy.characters(exclude_characters="\r\x85\u2028\u2029", exclude_categories=["Cs", "Cc"]), min_size=1)


@given(description=LINES.map(str.strip).filter(bool), body=hy.lists(LINES, min_size=1).map("\n".join))
def test_a_note_reads_back_as_it_was_written(description: str, body: str) -> None:
    note = Note("a-note", " ".join(description.split())[:300].strip() or "x", "user", body.strip() or "y")
    fields, text = load_front_matter(text_of(note))
    assert note_of("a-note.md", fields, text) == note


@pytest.mark.parametrize(
    "word", ["null", "yes", "12", "1.5", "a: b", "- x", "#x", '"', "it's", "a\\b", "~", "2026-11-22"]
)
def test_odd_words_of_a_description_stay_what_they_are(word: str) -> None:
    note = replace(DEPLOY, description=word)
    assert note_of("deploy-steps.md", *load_front_matter(text_of(note))) == note


def test_a_note_of_others_is_read_as_far_as_it_goes_and_keeps_its_fields() -> None:
    text = "---\nname: My Note\ndescription: >-\n  over two\n  lines\nmetadata: {type: user}\nodd: [1, 2]\n---\nBody"
    note = note_of("mine.md", *load_front_matter(text))
    assert (note.name, note.description, note.kind) == ("mine", "over two lines", "user")
    assert "odd: [1, 2]" in text_of(note)
    bare = note_of("bare.md", {}, "\n# A title\n\nand more")
    assert (bare.description, bare.kind) == ("A title", "project")


@pytest.mark.parametrize(
    "name", ["", "../x", "a/b", "MEMORY", "memory", "A", "x" * 65, ".x", "x.", "a..b", "ä", "a b", "x\n"]
)
def test_names_that_are_no_file_names_are_refused(name: str) -> None:
    assert name_fault(name)


@pytest.mark.parametrize(
    ("note", "why"),
    [
        (replace(DEPLOY, description="a\nb"), "one line"),
        (replace(DEPLOY, description=""), "one line"),
        (replace(DEPLOY, description="x" * 301), "301"),
        (replace(DEPLOY, body=" \n"), "no text"),
        (replace(DEPLOY, body="x" * (LONGEST + 1)), "20,001"),
        (replace(DEPLOY, body="a\0"), "NUL"),
        (DEPLOY, ""),
    ],
)
def test_a_note_has_a_description_a_text_and_limits(note: Note, why: str) -> None:
    assert why in faults_of(note)
    assert bool(faults_of(note)) == bool(why)


def test_the_index_follows_the_notes_and_keeps_what_people_wrote() -> None:
    index = "# Memory\n\n- [old](gone.md) - gone\n* [Tabs](./indentation.md): once\nRemember the milk.\n\n"
    now = update_index(index, [TABS, DEPLOY])
    assert now == (
        "# Memory\n\n- [indentation](indentation.md): The person wants tabs in Go and blanks elsewhere\n"
        "Remember the milk.\n"
        "- [deploy-steps](deploy-steps.md): How the service is deployed to staging\n"
    )
    assert update_index(now, [DEPLOY, TABS]) == now
    assert update_index("", []) == ""


def test_of_a_long_index_the_first_lines_are_shown_and_the_rest_is_told() -> None:
    many = prompt_part("\n".join(f"- {n}" for n in range(INDEX_LINES + 3)))
    assert many.count("\n- ") == INDEX_LINES - 1
    assert many.endswith("[Cut: 203 lines. `recall` finds the notes of the others.]")
    wide = prompt_part("\n".join("é" * 5_000 for _ in range(9)))
    assert len(wide.encode()) < INDEX_BYTES + 100
    assert prompt_part("one\ntwo\n") == "one\ntwo"


def test_notes_that_say_the_same_become_one_that_both_are_known_by() -> None:
    less = Note("ship", "shipping", "project", "  run MAKE ship, then watch the canary.  ")
    other = replace(DEPLOY, name="zz", body=f"{DEPLOY.body}\nAnd more.")
    changed, gone = merge_notes([less, DEPLOY, TABS, other])
    assert gone == ("deploy-steps", "ship")
    assert [note.name for note in changed] == ["zz"]
    assert changed[0].body == other.body
    assert "shipping" in changed[0].description
    assert merge_notes([TABS, DEPLOY]) == ((), ())


@given(hy.lists(hy.sampled_from(["a", "b", "a\nb", "b\na", "c", "A"]), max_size=8))
def test_merging_loses_no_line_and_is_done_at_once(bodies: list[str]) -> None:
    notes = [Note(f"n{n}", f"d{n}", "project", body) for n, body in enumerate(bodies)]
    changed, gone = merge_notes(notes)
    left = [
        note
        for note in {**{n.name: n for n in notes}, **{n.name: n for n in changed}}.values()
        if note.name not in gone
    ]
    lines = {line.casefold() for body in bodies for line in body.splitlines()}
    assert {line.casefold() for note in left for line in note.body.splitlines()} == lines
    assert merge_notes(left) == ((), ())


@pytest.mark.parametrize(
    ("words", "found"),
    [
        ("Please deploy the service", ["deploy-steps"]),
        ("What about indentations?", ["indentation"]),
        ("Who is the owner of billing?", ["who-owns-what"]),
        ("Who owns the parser, and how are we deploying?", ["who-owns-what", "deploy-steps"]),
        ("Fix the typo", []),
        ("", []),
        ("the and of to", []),
    ],
)
def test_the_words_of_a_turn_choose_the_notes_that_they_are_about(words: str, found: list[str]) -> None:
    assert sorted(chosen(words, NOTES)) == sorted(found)


def test_five_at_most_are_chosen_the_best_first_and_always_the_same_ones() -> None:
    notes = [(f"n{n}", Note(f"n{n}", f"canary number {n}", "project", "canary " * n + "x")) for n in range(9)]
    best = ("best", Note("canary-watch", "watch the canary in staging", "project", "x"))
    found = chosen("watch the canary in staging", [*notes, best])
    assert found[0] == "best"
    assert len(found) <= MOST
    assert chosen("watch the canary in staging", [best, *reversed(notes)]) == found
    assert chosen("watch the canary", [best], 0) == ()


def test_words_of_languages_without_blanks_count_too() -> None:
    note = Note("vault", "パスワードは金庫にある", "reference", "x")
    assert chosen("金庫はどこですか", [("vault", note)]) == () or "vault" in chosen(
        "金庫のパスワード", [("vault", note)]
    )
    assert chosen("金庫のパスワード", [("vault", note)]) == ("vault",)


@given(hy.text(max_size=200))
def test_any_text_has_words(text: str) -> None:
    assert all(terms(text))
    chosen(text, NOTES)
