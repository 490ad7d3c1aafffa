"""Groups of commands that know the names of Claude Code: other names of a command, and commands that do not exist."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click


class KnownNamesGroup(click.Group):
    """Group of commands that knows names of Claude Code.

    `aliases`: other name -> name. `elsewhere`: command that does not exist -> what to do instead.
    """

    def __init__(
        self,
        *args: Any,
        aliases: Mapping[str, str] | None = None,
        elsewhere: Mapping[str, str] | None = None,
        **settings: Any,
    ) -> None:
        super().__init__(*args, **settings)
        self.aliases = aliases or {}
        self.elsewhere = elsewhere or {}

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return the command with this name."""
        return super().get_command(ctx, self.aliases.get(cmd_name, cmd_name))

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command. Raises `click.UsageError`, which says what to do instead."""
        if args[0] in self.elsewhere:
            raise click.UsageError(f"there is no command {args[0]!r}. {self.elsewhere[args[0]]}", ctx)
        return super().resolve_command(ctx, args)
