"""Writer of `docs/cli.md` from the commands: `python -m callboard.cli.commands.reference > docs/cli.md`. Pure."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator

import click

from callboard.cli.commands.options import EVERYWHERE
from callboard.cli.commands.root import cli
from callboard.types.late_pattern import late_pattern

_HEAD = """\
# The command line

Generated from the commands by `python -m callboard.cli.commands.reference`; a test fails if this page differs.

Results go to stdout, progress and questions to stderr. `NO_COLOR`, `FORCE_COLOR` and `TERM=dumb` are respected.
Completion: `eval "$(callboard completion bash)"`, the same with `zsh`; for fish: `callboard completion fish | source`.

`-C`, `-q`, `-v`, `--debug`, `--color`, `--version` and `-h` may come before or after the name of any command.
`callboard help NAME` is the same as `callboard NAME --help`.

In a workspace without a session, listings of the workspace (`sessions`, `hosts`, `worktrees`, `cron list`, `cron
history`, `cron stats`, `workflow list`, `memory list`, `rate`) are empty, also with `--json`, and exit with 0. Listings
of one session (`team`, `tasks`, `plans`, `inbox`, `cost`, `context`, `policy log`, `policy rules`) exit with 2.

| exit code | meaning |
| --- | --- |
| 0 | done |
| 1 | the task failed |
| 2 | the command line was wrong |
| 3 | configuration, credentials, or a folder that cannot be used |
| 4 | an answer was needed that no one could give |
| 5 | a budget or limit was reached |
| 6 | the model service was unavailable |
| 70 | a bug in Callboard; the message names a file with the details |
| 124 | the time limit was reached |
| 129 | the terminal was closed, or SIGHUP; at SIGHUP `serve` rereads its settings instead |
| 130 | Ctrl-C |
| 143 | SIGTERM |
"""

_STREAM = """\
## Output formats of `run`

`text`: the lead's final text. `json`: one object, the `result` message below. `stream-json`: one JSON object per line,
as things happen; the first is `system/init`, the last is `result`.

| message | when |
| --- | --- |
| `system` / `init` | first: the session's id, folder, model, permission mode, the lead's tools |
| `assistant` | a whole reply, in the form of the Messages API |
| `user` | results of tools; with `isSynthetic`, mail that an agent received (`origin` names the sender) |
| `system` / `api_retry` | a model call is tried again after `retry_delay_ms` |
| `system` / `call_held` | Callboard only: a model call waited `held_ms` before it was sent, because of `reason` |
| `system` / `budget_reached` | Callboard only: a call or an agent did not fit the `budget`; `message` describes it |
| `system` / `stuck` | Callboard only: repetition (`pattern`, `count`, `message`; `action`: `nudge`, `stop`) |
| `system` / `compact_boundary` | the conversation before this point was summarized |
| `system` / `task_started`, `task_notification` | an agent or a background command started, ended |
| `system` / `permission_denied` | a tool call was refused |
| `result` / `success` | last: `result` contains the lead's final text |
| `result` / `error_max_turns`, `error_max_budget_usd`, `error_during_execution` | last: `errors` contains the reason |

The result of a failed run contains the lead's final text in `result` too, if there is one.

`total_cost_usd` and `modelUsage` of `result` count from the start of this command, also if it continues a session.

Besides the fields of the protocol, `result` has `metrics`: for the `session` and for each of its `agents`, the same
numbers as in `callboard context --json` and `callboard team --json`. They count from an agent's first record.

| field | meaning |
| --- | --- |
| `cache_hit_rate` | the share (0 to 1) of all input that was read from the service's prompt cache |
| `compact_count` | how often a stage reduced the conversation, by `stage/trigger`; undoes are not counted |
| `token_usage` | tokens: `input` (neither written nor read), `write`, `read`, `output` |
| `reread_count` | results that were requested again after they had been cut |

Every message has a `uuid` and a `session_id`. Messages of an agent other than the lead have its name in `agent`, and
the call that started it in `parent_tool_use_id`. Tools have Callboard's own names.

A program that drives a session reads more messages, and writes lines itself: [programs that drive
Callboard](headless.md).
"""

_PLACEHOLDER = late_pattern(r"\s+")


def page() -> str:
    """Return the whole page."""
    return "\n".join([_HEAD, *_sections(click.Context(cli, info_name="callboard", **cli.context_settings)), _STREAM])


def _sections(context: click.Context) -> Iterator[str]:
    yield _section(context)
    command = context.command
    if not isinstance(command, click.Group):
        return
    for name in command.list_commands(context):
        inner = command.get_command(context, name)
        if inner is not None:
            yield from _sections(click.Context(inner, parent=context, info_name=name))


def _section(context: click.Context) -> str:
    command = context.command
    usage = " ".join([context.command_path, *command.collect_usage_pieces(context)])
    about = inspect.cleandoc(command.help or "")
    params = [each for each in command.get_params(context) if _is_listed(each, context)]
    options = [row for each in params if (row := each.get_help_record(context)) is not None]
    rows = [f"| `{_cell(names)}` | {_cell(text)} |" for names, text in options]
    table = ["| option | meaning |", "| --- | --- |", *rows, ""] if rows else []
    return "\n".join([f"## `{context.command_path}`", "", f"    {usage}", "", about, "", *table])


def _is_listed(option: click.Parameter, context: click.Context) -> bool:
    """Return True if the section of a command lists the option.

    Options of every command are listed only in the first section.
    """
    return isinstance(option, click.Option) and (context.parent is None or option.name not in EVERYWHERE)


def _cell(text: str) -> str:
    return _PLACEHOLDER.sub(" ", text).replace("|", "\\|").strip()


if __name__ == "__main__":
    sys.stdout.write(page())
