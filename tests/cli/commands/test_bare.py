"""A command line without a command: options before a command take their values, whichever options there are."""

from __future__ import annotations

import click
import pytest

from callboard.cli.commands.root import as_run, cli

BEFORE = [one for one in cli.params if isinstance(one, click.Option)]
VALUED = [name for one in BEFORE if not one.is_flag and not one.count for name in one.opts]
FLAGS = [name for one in BEFORE if one.is_flag or one.count for name in (*one.opts, *one.secondary_opts)]


@pytest.mark.parametrize("name", VALUED)
def test_an_option_with_a_value_stands_before_an_option_of_run(name: str) -> None:
    line = [name, "value", "-p", "Do it."]
    assert as_run(line, cli.params) == ["run", *line]
    joined = [f"{name}=value", "team"]
    assert as_run(joined, cli.params) == joined


@pytest.mark.parametrize("name", VALUED)
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
