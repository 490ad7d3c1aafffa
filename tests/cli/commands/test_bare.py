"""In a command line without a command, options take their values, whichever options they are."""

from __future__ import annotations

import click
import pytest

from callboard.cli.commands.client_options import repeat_options
from callboard.cli.commands.root import as_run, cli, with_first_prompt

BEFORE = [one for one in cli.params if isinstance(one, click.Option)]
VALUED = [name for one in BEFORE if not one.is_flag and not one.count for name in one.opts]
BARE = ["-w", "--worktree", "-r", "--resume"]
"""Options whose value may be missing."""
FLAGS = [name for one in BEFORE if one.is_flag or one.count for name in (*one.opts, *one.secondary_opts)]


@pytest.mark.parametrize("name", VALUED)
def test_an_option_with_a_value_stands_before_an_option_of_run(name: str) -> None:
    line = [name, "value", "-p", "Do it."]
    assert as_run(line, cli.params) == ["run", *line]
    joined = [f"{name}=value", "team"]
    assert as_run(joined, cli.params) == joined


@pytest.mark.parametrize("name", [name for name in VALUED if name not in BARE])
def test_the_value_of_an_option_is_not_taken_for_an_option_of_run(name: str) -> None:
    line = [name, "--print", "team"]
    assert as_run(line, cli.params) == line


@pytest.mark.parametrize("name", FLAGS)
def test_a_flag_takes_no_word(name: str) -> None:
    assert as_run([name, "-p", "Do it."], cli.params) == ["run", name, "-p", "Do it."]
    assert as_run([name, "team", "-p"], cli.params) == [name, "team", "-p"]


def test_an_agent_a_plugin_or_a_server_before_an_option_of_run_is_a_run() -> None:
    for name in ("--agent", "--plugin", "--plugin-dir", "--mcp-config"):
        assert name in VALUED


@pytest.mark.parametrize("name", [*VALUED, *FLAGS])
def test_an_option_of_the_prompt_line_alone_makes_no_run(name: str) -> None:
    line = [f"{name}=value"] if name in VALUED else [name]
    assert as_run(line, cli.params) == line


PROMPT = "Fix the tests."


@pytest.mark.parametrize(
    ("line", "on_terminal", "elsewhere"),
    [
        ([PROMPT], ["--prompt", PROMPT], ["run", PROMPT]),
        (
            ["-v", "--model", "m", PROMPT],
            ["-v", "--model", "m", "--prompt", PROMPT],
            ["run", "-v", "--model", "m", PROMPT],
        ),
        ([PROMPT, "--model", "m"], ["--model", "m", "--prompt", PROMPT], ["run", PROMPT, "--model", "m"]),
        ([PROMPT, "-p"], ["run", PROMPT, "-p"], ["run", PROMPT, "-p"]),
        ([PROMPT, "-v", "--max-turns", "3"], ["run", PROMPT, "-v", "--max-turns", "3"], None),
        (["team"], ["team"], ["team"]),
        (["temas"], ["temas"], ["temas"]),
        (["hello"], ["--prompt", "hello"], ["hello"]),
        (["/review"], ["--prompt", "/review"], ["/review"]),
        (["hello", "--model", "m"], ["--model", "m", "--prompt", "hello"], ["hello", "--model", "m"]),
        (["hello", "world"], ["hello", "world"], ["hello", "world"]),
        (["login"], ["login"], ["login"]),
        (["run", PROMPT], ["run", PROMPT], ["run", PROMPT]),
        (["-c"], ["-c"], ["-c"]),
        ([], [], []),
        ([" "], [" "], [" "]),
        (["--", PROMPT], ["--", PROMPT], ["--", PROMPT]),
    ],
)
def test_a_first_word_with_a_blank_or_unlike_any_command_is_a_prompt(
    line: list[str], on_terminal: list[str], elsewhere: list[str] | None
) -> None:
    assert with_first_prompt(line, cli.params, terminal=True) == on_terminal
    assert with_first_prompt(line, cli.params, terminal=False) == (elsewhere or on_terminal)


@pytest.mark.parametrize(
    ("line", "expanded"),
    [
        (
            ["--allowedTools", "Read", "Bash(git log *)", "mcp__db__query", "Fix it."],
            [
                *("--allowedTools", "Read", "--allowedTools", "Bash(git log *)", "--allowedTools", "mcp__db__query"),
                "Fix it.",
            ],
        ),
        (["--allowedTools", "Read,Edit", "-p", "Do"], ["--allowedTools", "Read,Edit", "-p", "Do"]),
        (
            ["--disallowedTools", "bash", "read_file", "go"],
            ["--disallowedTools", "bash", "--disallowedTools", "read_file", "go"],
        ),
        (["--add-dir", "../a", "/b", "Fix it"], ["--add-dir", "../a", "--add-dir", "/b", "Fix it"]),
        (["--mcp-config", "a.json", "b.json", "go"], ["--mcp-config", "a.json", "--mcp-config", "b.json", "go"]),
        (["--debug", "api,mcp", "go"], ["--debug", "go"]),
        (["-d", "!hooks,file", "-p", "go"], ["-d", "-p", "go"]),
        (["--debug", "hello"], ["--debug", "hello"]),
        (["--debug", "Say a,b"], ["--debug", "Say a,b"]),
        (["--allowedTools"], ["--allowedTools"]),
        (["--allowedTools", "Read", "--", "Edit"], ["--allowedTools", "Read", "--", "Edit"]),
    ],
)
def test_an_option_may_be_followed_by_several_values(line: list[str], expanded: list[str]) -> None:
    assert repeat_options(line) == expanded
    assert repeat_options(expanded) == expanded


@pytest.mark.parametrize("name", BARE)
def test_an_option_whose_value_may_be_missing_takes_no_option_for_it(name: str) -> None:
    assert as_run([name, "-p", "Do it."], cli.params) == ["run", name, "-p", "Do it."]
    assert as_run([name, "feature", "-p", "Do it."], cli.params) == ["run", name, "feature", "-p", "Do it."]
    assert as_run([name], cli.params) == [name]


@pytest.mark.parametrize(
    "line", [["hello", "-p"], ["-v", "hello", "--print"], ["-pc", "hello"], ["-cp", "more"], ["-vp", "hello"]]
)
def test_one_word_with_the_option_print_is_the_prompt_of_a_run(line: list[str]) -> None:
    assert as_run(line, cli.params) == ["run", *line]


@pytest.mark.parametrize("line", [["team", "-p"], ["hello"], ["-cv"], ["-qv", "team"]])
def test_a_command_or_a_lone_word_is_left_as_it_is(line: list[str]) -> None:
    assert as_run(line, cli.params) == line
