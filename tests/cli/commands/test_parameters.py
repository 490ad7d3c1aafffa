"""The parameters of each command's function match its options and arguments; nothing else checks this before a run."""

from __future__ import annotations

import inspect
from collections.abc import Iterator

import click

from callboard.cli.commands.completion import _complete  # hidden from the list
from callboard.cli.commands.root import cli


def commands(command: click.Command, path: str) -> Iterator[tuple[str, click.Command]]:
    yield path, command
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            below = command.get_command(context, name)
            assert below is not None
            yield from commands(below, f"{path} {name}")


def test_each_function_takes_the_parameters_of_its_command() -> None:
    wrong: dict[str, set[str]] = {}
    for path, command in [*commands(cli, "callboard"), ("callboard _complete", _complete)]:
        if command.callback is None:
            continue
        parameters = inspect.signature(inspect.unwrap(command.callback)).parameters.values()
        if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
            continue
        passed = {parameter.name for parameter in command.params if parameter.expose_value and parameter.name}
        if passed - {parameter.name for parameter in parameters}:
            wrong[path] = passed - {parameter.name for parameter in parameters}
    assert wrong == {}
