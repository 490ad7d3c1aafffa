"""Skills without files: substitution, commands in a text, what was typed, the catalogue's budget, the open rules."""

from __future__ import annotations

import os
import shlex

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from callboard.core.skills.catalog import budget_of, list_skills, problems
from callboard.core.skills.substitution import (
    MOST_STACKED,
    argument_names,
    commands_in,
    exit_counts,
    fill_placeholders,
    first_name,
    split_arguments,
    typed_commands,
    unknown_command,
    with_arguments,
    with_outputs,
)
from callboard.types.skills import SkillText

SOAK = int(os.environ.get("SOAK", "10"))
LITTLE = settings(max_examples=60, deadline=None)
MUCH = settings(max_examples=300 * SOAK, deadline=None)

# Substitution


@pytest.mark.parametrize(
    ("body", "arguments", "text", "taken"),
    [
        ("Fix $ARGUMENTS.", '7 "a b"', 'Fix 7 "a b".', True),
        ("Fix $ARGUMENTS.", "", "Fix .", True),
        ("$0 from $1 to $2", '"search bar" React', "search bar from React to $2", True),
        ("$ARGUMENTS[1]-$ARGUMENTS[5]", "a b", "b-$ARGUMENTS[5]", True),
        ("$issue on $branch", "42", "42 on ", True),
        ("$issue-number $issuer", "42", "42-number $issuer", True),
        ("$branch", "42", "", False),
        ("costs \\$1.00, \\$ARGUMENTS, \\$issue, \\$HOME", "x", "costs $1.00, $ARGUMENTS, $issue, \\$HOME", False),
        ("$HOME $(pwd) ${HOME} $argumentsX", "x", "$HOME $(pwd) ${HOME} $argumentsX", False),
        ("$ARGUMENTSX $ARGUMENTS_Y", "x", "xX x_Y", True),
        ("\\\\$0 \\$0 \\\\$ARGUMENTS", "x", "\\\\x $0 \\\\x", True),
        (
            "${CLAUDE_SKILL_DIR}/run ${CLAUDE_NONE} \\${CLAUDE_SKILL_DIR}",
            "",
            "/s/run ${CLAUDE_NONE} ${CLAUDE_SKILL_DIR}",
            True,
        ),
        ("$0", "an 'open quote", "an", True),
        ("$10", " ".join(map(str, range(12))), "10", True),
        ("$0k, $0_, $1st and $100 in $0", "a b", "$0k, $0_, $1st and $100 in a", True),
        ("$0-$1.$0", "a b", "a-b.a", True),
        ("nothing", "x", "nothing", False),
    ],
)
def test_what_stands_in_a_text_for_the_arguments(body: str, arguments: str, text: str, taken: bool) -> None:
    found = fill_placeholders(body, arguments, ("issue", "branch"), {"CLAUDE_SKILL_DIR": "/s"})
    assert found == (text, taken)


def test_arguments_that_no_place_takes_stand_in_the_last_line() -> None:
    assert with_arguments("Do it.\n\n", "now") == "Do it.\n\nARGUMENTS: now"


@pytest.mark.parametrize(
    ("written", "good", "bad"),
    [
        ("issue branch", ("issue", "branch"), ()),
        (["issue", "branch-name"], ("issue", "branch-name"), ()),
        ("a, b", ("a", "b"), ()),
        (["1st", "ARGUMENTS", ""], (), ("1st", "ARGUMENTS", "")),
        (None, (), ()),
    ],
)
def test_names_of_arguments(written: object, good: tuple[str, ...], bad: tuple[str, ...]) -> None:
    assert argument_names(written) == (good, bad)


def _nothing_is_looked_at_twice(arguments: str, names: list[str]) -> None:
    assert fill_placeholders("$ARGUMENTS", arguments, names) == (arguments, True)
    for place, word in enumerate(split_arguments(arguments)[:3]):
        assert fill_placeholders(f"<${place}>", arguments, names)[0] == f"<{word}>"
        assert fill_placeholders(f"<\\${place}>", arguments, names)[0] == f"<${place}>"


def _plain_text_stays(body: str, arguments: str) -> None:
    quiet = body.replace("$", "")
    assert fill_placeholders(quiet, arguments, ("issue",), {"CLAUDE_X": "y"}) == (quiet, not arguments.strip())


NAMES = st.lists(st.from_regex(r"[a-z][a-z0-9_-]{0,5}", fullmatch=True), max_size=3)
WORDS = st.text(st.sampled_from("ab $0{}[]\\'\"ARGUMENTS_!`\n"), max_size=40)


@LITTLE
@given(WORDS, NAMES)
def test_what_comes_in_is_never_looked_at_again(arguments: str, names: list[str]) -> None:
    _nothing_is_looked_at_twice(arguments, names)


@LITTLE
@given(WORDS, WORDS)
def test_a_text_without_places_stays(body: str, arguments: str) -> None:
    _plain_text_stays(body, arguments)


@pytest.mark.soak
@MUCH
@given(WORDS, NAMES, WORDS)
def test_the_same_at_length(arguments: str, names: list[str], body: str) -> None:
    _nothing_is_looked_at_twice(arguments, names)
    _plain_text_stays(body, arguments)


@LITTLE
@given(st.lists(st.text(min_size=1, max_size=8), min_size=1, max_size=5))
def test_quoted_arguments_come_apart_as_a_shell_does_it(words: list[str]) -> None:
    assert split_arguments(shlex.join(words)) == tuple(words)


# Commands in a text


def test_commands_are_found_where_their_author_put_them() -> None:
    text = "- now: !`git status`\nno: foo!`bar`\n```!\nls a\nls b\n```\n  ```!\n  pwd\n  ```\n!``\n"
    text += "```sh\n!`in a fence`\n```\n"
    found = commands_in(text)
    assert [one.command for one in found] == ["git status", "ls a\nls b", "pwd", "in a fence"]
    filled_in = with_outputs(text, found, ["clean\n", "a\nb\n", "/w", "!`again`"])
    assert filled_in == "- now: clean\nno: foo!`bar`\na\nb\n/w\n!``\n```sh\n!`again`\n```\n"


@LITTLE
@given(
    st.lists(st.sampled_from(["text ", "\n", "!`a b` ", "```!\nx\n```\n", "`", "!"]), max_size=12), st.text(max_size=5)
)
def test_what_is_no_command_stays_as_it_is(parts: list[str], output: str) -> None:
    text = "".join(parts)
    found = commands_in(text)
    rest = output.rstrip("\n")
    made = with_outputs(text, found, [output] * len(found))
    outside = [
        text[a:b]
        for a, b in zip([0, *(one.end for one in found)], [*(one.start for one in found), len(text)], strict=True)
    ]
    assert made == rest.join(outside)


@pytest.mark.parametrize(
    ("command", "code", "counts"),
    [
        ("ls x", 0, False),
        ("ls x", 1, True),
        ("grep -r a .", 1, False),
        ("grep -r a .", 2, True),
        ("cat x | grep a", 1, False),
        ("grep a x | wc -l", 1, True),
        ("git diff --exit-code", 1, False),
        ("git status", 1, True),
        ("LANG=C rg a", 1, False),
        ("/usr/bin/diff a b", 1, False),
        ("test -f x && ls", 1, True),
        ("grep 'open", 1, True),
        ("grep a", None, True),
    ],
)
def test_exit_code_one_of_a_search_is_no_failure(command: str, code: int | None, counts: bool) -> None:
    assert exit_counts(command, code) is counts


# What was typed


@pytest.mark.parametrize(
    ("text", "names", "arguments"),
    [
        ("/fix 42", ("fix",), "42"),
        ("  /fix\n42\n43", ("fix",), "42\n43"),
        ("/plug:fix", ("plug:fix",), ""),
        ("/fix /look at /etc/hosts", ("fix", "look"), "at /etc/hosts"),
        ("/fix /fix /fix", ("fix",), ""),
        ("/fix /etc/hosts", ("fix",), "/etc/hosts"),
        ("/fix, please", None, ""),
        ("/fixes", None, ""),
        ("/etc/hosts is wrong", None, ""),
        ("say /fix", None, ""),
    ],
)
def test_which_commands_a_message_begins_with(text: str, names: tuple[str, ...] | None, arguments: str) -> None:
    found = typed_commands(text, {"fix", "look", "plug:fix"}.__contains__)
    assert (found.names, found.arguments) == (names, arguments) if found else names is None


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("/fix", "fix"),
        ("  /web:ui:deploy now", "web:ui:deploy"),
        ("/mcp__s__p a b", "mcp__s__p"),
        ("/审查 das", "审查"),
        ("/prüfen", "prüfen"),
        ("/etc/hosts is wrong", ""),
        ("/tmp is full", ""),
        ("/home", ""),
        ("\\/fix", ""),
        ("/ fix", ""),
        ("/", ""),
        ("//fix", ""),
        ("/*.py are new", ""),
        ("fix /this", ""),
        ("", ""),
    ],
)
def test_the_name_of_the_command_that_a_message_begins_with(text: str, name: str) -> None:
    assert first_name(text) == name


def test_an_unknown_command_is_told_with_the_nearest_names() -> None:
    known = ["api:deploy", "web:deploy", "review", "help"]
    assert "Did you mean /api:deploy or /web:deploy?" in unknown_command("deploy", known)
    assert "Did you mean /review?" in unknown_command("reveiw", known)
    assert unknown_command("zzz", known).startswith("there is no command /zzz. To send it")
    assert unknown_command("compact", known) == (
        "there is no command /compact here. Use `callboard -c -p /compact`, or /compact at the prompt line"
    )
    assert "Write an AGENTS.md" in unknown_command("init", known)


def test_at_most_six_stand_at_the_beginning() -> None:
    found = typed_commands(" ".join(f"/s{n}" for n in range(8)), lambda name: True)
    assert found is not None
    assert (len(found.names), found.arguments) == (MOST_STACKED, "/s6 /s7")


# The catalogue


@LITTLE
@given(
    st.lists(st.integers(0, 60), max_size=12),
    st.lists(st.integers(0, 3), min_size=12, max_size=12),
    st.integers(0, 700),
)
def test_every_name_stands_and_the_least_used_descriptions_go_first(
    sizes: list[int], uses: list[int], budget: int
) -> None:
    skills = [SkillText(f"s{n}", "d" * size, "") for n, size in enumerate(sizes)]
    counts = {one.name: uses[n] for n, one in enumerate(skills)}
    found = list_skills(skills, counts, budget)
    assert [name for name, _ in found] == [one.name for one in skills]
    dropped = {n for n, (_, text) in enumerate(found) if text != skills[n].description}
    cost = sum(len(f"- {name}: {text}\n" if text else f"- {name}\n") for name, text in found)
    assert cost <= budget or all(not text for _, text in found)
    assert all(uses[a] <= uses[b] for a in dropped for b in range(len(sizes)) if b not in dropped and sizes[b])


def test_the_budget_is_a_share_of_the_window() -> None:
    assert budget_of(200_000) == 8_000


# The open specification


GOOD = {"name": "a-b", "description": "d"}


@pytest.mark.parametrize(
    ("fields", "wrong"),
    [
        (GOOD, []),
        (
            {**GOOD, "metadata": {"version": "1.0"}, "license": "MIT", "compatibility": "git", "allowed-tools": "Read"},
            [],
        ),
        ({"description": "d"}, ["name"]),
        ({"name": "a-b"}, ["description"]),
        ({**GOOD, "name": "other"}, ["name"]),
        ({**GOOD, "name": "A_b"}, ["name", "name"]),
        ({**GOOD, "name": "a--b"}, ["name", "name"]),
        ({**GOOD, "name": "a" * 65}, ["name", "name"]),
        ({**GOOD, "name": 7}, ["name"]),
        ({**GOOD, "description": "d" * 1_025}, ["description"]),
        ({**GOOD, "description": " "}, ["description"]),
        ({**GOOD, "compatibility": "c" * 501}, ["compatibility"]),
        ({**GOOD, "metadata": {"version": 1}}, ["metadata.version"]),
        ({**GOOD, "metadata": "x"}, ["metadata"]),
        ({**GOOD, "allowed-tools": ["Read"]}, ["allowed-tools"]),
        ({**GOOD, "model": "haiku"}, ["model"]),
    ],
)
def test_the_rules_of_the_open_specification(fields: dict[str, object], wrong: list[str]) -> None:
    assert [one.field for one in problems(fields, "a-b", "Do it.") if one.fatal] == wrong


def test_a_long_body_is_advice_alone() -> None:
    assert [one.fatal for one in problems(GOOD, "a-b", "x\n" * 501)] == [False]
