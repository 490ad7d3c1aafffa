"""`policy explain`, `test`, `lint`, `log`: permission decisions, before and after they happen.

Read-only: they ask no one, run no tool or hook, and change nothing.

`policy rules`, `policy revoke`: rules that the user created in answers of a session, and their revocation.
Revocation is refused inside a tool call, because no agent approves its own actions.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence

import click

from callboard.adapters.processes.tool_ancestry import refuse_inside_tool
from callboard.cli.commands.options import Invocation, as_json, everywhere, of_session, refuse_idle
from callboard.cli.commands.output import print_rows, terminal_of, with_handle
from callboard.cli.terminal.terminal import block
from callboard.cli.views.policy import (
    call_block,
    call_json,
    lint_block,
    log_table,
    revoked_words,
    rules_table,
    tried_block,
    tried_json,
)
from callboard.core.permissions.call_input import MODES
from callboard.core.reports.decisions import Decision
from callboard.sessions.handle import SessionHandle
from callboard.sessions.inspect.policy import (
    CallQuestion,
    EffectiveSettings,
    WorkspaceJudge,
    explain_question,
    in_force,
    lint,
    try_examples,
)
from callboard.types.errors import UsageError
from callboard.types.records import SessionRule


@click.command()
@click.option("--all", "all_", is_flag=True, help="Also show expired and revoked rules.")
@of_session
@as_json
@everywhere
@click.pass_obj
def rules(invocation: Invocation, /, session: str | None, all_: bool, json_: bool) -> None:
    """List the session rules: permissions granted with "always", and rules of a client."""

    async def read(handle: SessionHandle) -> tuple[Sequence[SessionRule], bool]:
        every = handle.rules.all()
        return (every if all_ else handle.rules.active_rules()), bool(every)

    now = time.time()
    rows, any_rules = with_handle(invocation, session, read)
    print_rows(invocation, rows, lambda rows: rules_table(rows, now, ended=any_rules), json_=json_)


@click.command()
@click.argument("rule_id", metavar="ID")
@of_session
@everywhere
@click.pass_obj
def revoke(invocation: Invocation, /, rule_id: str, session: str | None) -> None:
    """Revoke a session rule: from now on it has no effect.

    ID is shown by `callboard policy rules`; a prefix is enough.
    """
    refuse_inside_tool("Revoking a session rule")

    revoked = with_handle(invocation, session, lambda handle: handle.rules.revoke(rule_id))
    with terminal_of(invocation) as terminal:
        terminal.rows(block(revoked_words(revoked), "good"))


@click.group()
def policy() -> None:
    """Explain, test and lint permissions; list decisions."""


policy.add_command(rules)
policy.add_command(revoke)


@policy.command()
@click.argument("call", required=False)
@click.option(
    "--stdin", is_flag=True, help="Read one JSON call per line from stdin and print one JSON decision per line."
)
@click.option(
    "--tool",
    default="bash",
    show_default=True,
    metavar="NAME",
    help="Tool of the call; CALL is then its input as JSON.",
)
@click.option("--mode", type=click.Choice(list(MODES)), help="Use this mode instead of the current one.")
@click.option(
    "--agent-type", default="lead", show_default=True, metavar="TYPE", help="Use the rules and mode of this agent type."
)
@click.option("--folder", default="", metavar="PATH", help="Folder of the agent; default: the workspace.")
@click.option("--trust", is_flag=True, help="Act as if this workspace were trusted.")
@as_json
@everywhere
@click.pass_obj
def explain(
    invocation: Invocation, /, *, call: str | None, stdin: bool, trust: bool, json_: bool, **values: str | None
) -> None:
    """Show how CALL would be decided, and why. Runs nothing.

    CALL is a shell command, or with --tool the input of another tool: JSON, or a path for a file tool.

    --stdin reads {"tool", "input", "mode", "rules": {"allow", "ask", "deny"}, "cwd"} and answers {"decision", "reason",
    "by"}, until the input ends. Only the rules in the call and the built-in rules apply.
    """
    if stdin:
        idle = ("call", "tool", "mode", "agent_type", "folder", "trust", "json_")
        refuse_idle(idle, "with --stdin: each line has its own call, rules and folder")
        _answer_lines(WorkspaceJudge(invocation.workspace))
        return
    if call is None:
        raise UsageError("give a call to explain, or --stdin for many")
    if values["folder"] and not (invocation.workspace / values["folder"]).is_dir():
        raise UsageError(f"--folder {values['folder']}: there is no such folder in {invocation.workspace.resolve()}")
    _explain(invocation, in_force(invocation.workspace, trust=trust), call, values, json_=json_)


@policy.command()
@as_json
@everywhere
@click.pass_obj
def test(invocation: Invocation, /, json_: bool) -> int:
    """Check the rules against the examples written next to them. Exit code 1 if one fails, or if there are none.

    Examples are in `permission.examples` of settings and in `.callboard/policy-tests.yaml`: `- {call: git push,
    decision: ask}`. The workspace's files count whether it is trusted or not: nothing takes effect, and nothing is run.
    """
    force = in_force(invocation.workspace, trust=True)
    results = list(try_examples(force, WorkspaceJudge(invocation.workspace, force)))
    with terminal_of(invocation) as terminal:
        if json_:
            terminal.record(json.dumps([tried_json(each) for each in results], indent=2))
        else:
            terminal.rows(tried_block(results))
    return 1 if not results or any(each.wrong for each in results) else 0


@policy.command(name="lint")
@as_json
@everywhere
@click.pass_obj
def lint_(invocation: Invocation, /, json_: bool) -> int:
    """Find rules and hooks that do not work as they seem to. Exit code 1 if there are any.

    Rules that never match or are covered by others, unknown tools, misleading matchers, hooks with missing scripts. The
    workspace's files are read whether it is trusted or not; nothing is run.
    """
    force = in_force(invocation.workspace, trust=True)
    findings = lint(force, WorkspaceJudge(invocation.workspace, force))
    print_rows(invocation, findings, lint_block, json_=json_)
    return 1 if any(finding.code != "note" for finding in findings) else 0


@policy.command()
@click.option("--agent", metavar="NAME", help="Show only decisions about this agent.")
@click.option("--denied", is_flag=True, help="Show only calls that were denied, refused, or not answered in time.")
@of_session
@as_json
@everywhere
@click.pass_obj
def log(invocation: Invocation, /, *, agent: str | None, denied: bool, session: str | None, json_: bool) -> None:
    """List every decision on a tool call of a session, oldest first.

    The agent, the call, the decision, the rule, hook, mode or person that decided, and the outcome of a question. Read
    from the journals, during and after the session. JSON has all details: the digest of each input, the mode, the
    sandbox level, the turn's authority.
    """

    async def read(handle: SessionHandle) -> Sequence[Decision]:
        return await handle.decisions(agent)

    decisions = with_handle(invocation, session, read)
    rows = [decision for decision in decisions if not denied or decision.runs is False]
    print_rows(invocation, rows, lambda rows: log_table(rows, total=len(decisions)), json_=json_)


def _explain(
    invocation: Invocation, force: EffectiveSettings, text: str, values: dict[str, str | None], *, json_: bool
) -> None:
    agent_type = values["agent_type"] or "lead"
    question = CallQuestion(text, values["tool"] or "bash", values["mode"] or "", agent_type, values["folder"] or "")
    found = explain_question(force, question)
    with terminal_of(invocation) as terminal:
        if json_:
            terminal.record(json.dumps(call_json(found.report, agent_type, found.hooks), indent=2))
        else:
            terminal.rows(
                call_block(
                    found.report,
                    text,
                    whose=f"agent type {agent_type}, {found.rules} rules in force",
                    hooks=found.hooks,
                    inert=force.inert,
                )
            )


def _answer_lines(explaining: WorkspaceJudge) -> None:
    """Write one answer for each line, whatever its content, before reading the next."""
    for line in sys.stdin.buffer:
        verdict = explaining.line(line)
        answer = {"decision": verdict.decision, "reason": verdict.why, "by": verdict.rule}
        sys.stdout.write(f"{json.dumps(answer)}\n")
        sys.stdout.flush()
