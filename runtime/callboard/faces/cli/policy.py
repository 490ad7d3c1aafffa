"""`policy explain`, `test`, `lint`, `log`: what is allowed, asked and refused, before and after it happens. Reads only.

Nothing here asks anybody, runs a tool or a hook, or changes what is in force.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence

import click

from callboard.core.asking.decided import Decision
from callboard.core.permission.given import MODES, GivenCall, Misread, call_of_words
from callboard.core.permission.told import call_told
from callboard.desks.desk import Desk
from callboard.explaining import Explaining, InForce, in_force
from callboard.faces.cli.options import Given, as_json, everywhere, of_session
from callboard.faces.cli.run import terminal_of
from callboard.faces.cli.session_rules import revoke, rules
from callboard.faces.cli.team import at_desk, print_rows
from callboard.faces.pages.policy import call_block, call_json, lint_block, log_table, tried_block, tried_json
from callboard.policy_checks import tried
from callboard.policy_lint import lint
from callboard.words.errors import UsageError


@click.group()
def policy() -> None:
    """Explain, test and lint what is allowed; list what was decided."""


policy.add_command(rules)
policy.add_command(revoke)


@policy.command()
@click.argument("call", required=False)
@click.option("--stdin", is_flag=True, help="One JSON call a line on stdin, one JSON decision a line on stdout.")
@click.option("--tool", default="bash", show_default=True, metavar="NAME", help="CALL is this tool's input, as JSON.")
@click.option("--mode", type=click.Choice(list(MODES)), help="Instead of the mode in force.")
@click.option("--agent-type", default="lead", show_default=True, metavar="TYPE", help="Whose rules and mode.")
@click.option("--folder", default="", metavar="PATH", help="Where the agent works; left out: the workspace.")
@click.option("--trust", is_flag=True, help="As if this workspace were trusted.")
@as_json
@everywhere
@click.pass_obj
def explain(given: Given, /, call: str | None, stdin: bool, trust: bool, json_: bool, **asked: str | None) -> None:
    """Say what would be decided of CALL, and why. Runs nothing.

    CALL is a shell command, or with --tool the input of another tool: JSON, or a path for a file tool.

    --stdin reads {"tool", "input", "mode", "rules": {"allow", "ask", "deny"}, "cwd"} and answers {"decision", "reason",
    "by"}, until the input ends. Only the rules of the call and the built-in ones count there.
    """
    if stdin:
        _answer_lines(Explaining(given.workspace))
        return
    if call is None:
        raise UsageError("give a call to explain, or --stdin for many")
    _explain(given, in_force(given.workspace, trust=trust), call, asked, json_=json_)


@policy.command()
@as_json
@everywhere
@click.pass_obj
def test(given: Given, /, json_: bool) -> int:
    """Hold the rules to the examples beside them. Exit code 1 when one fails, or when there are none.

    Examples stand in `permission.examples` of settings and in `.callboard/policy-tests.yaml`: `- {call: git push,
    decision: ask}`. The workspace's files count whether it is trusted or not: nothing takes effect, nothing is run.
    """
    force = in_force(given.workspace, trust=True)
    found = list(tried(force, Explaining(given.workspace, force)))
    with terminal_of(given) as terminal:
        if json_:
            terminal.record(json.dumps([tried_json(each) for each in found], indent=2))
        else:
            terminal.rows(tried_block(found))
    return 1 if not found or any(each.wrong for each in found) else 0


@policy.command(name="lint")
@as_json
@everywhere
@click.pass_obj
def lint_(given: Given, /, json_: bool) -> int:
    """Look for rules and hooks that do not do what they seem to. Exit code 1 when there are any.

    Rules that never match or are covered by others, unknown tools, matchers that mean something else, hooks whose
    scripts are not there. The workspace's files are read whether it is trusted or not; nothing is run.
    """
    force = in_force(given.workspace, trust=True)
    found = lint(force, Explaining(given.workspace, force))
    print_rows(given, found, lint_block, json_=json_)
    return 1 if any(one.code != "note" for one in found) else 0


@policy.command()
@click.option("--agent", metavar="NAME", help="Of this agent only.")
@click.option("--denied", is_flag=True, help="Only what was denied, refused or left unanswered until its deadline.")
@of_session
@as_json
@everywhere
@click.pass_obj
def log(given: Given, /, agent: str | None, denied: bool, session: str | None, json_: bool) -> None:
    """List every decision on a tool call of a session, oldest first.

    Who called what, the verdict, the rule, hook, mode or person that decided, and what came of a question. It is read
    from the journals, while the session runs and when it has ended. JSON has the whole of it: the digest of each input,
    the mode, the sandbox level, the turn's authority.
    """

    async def read(desk: Desk) -> Sequence[Decision]:
        return [one for one in await desk.decisions(agent) if not denied or one.runs is False]

    print_rows(given, at_desk(given, session, read), log_table, json_=json_)


def _explain(given: Given, force: InForce, text: str, asked: dict[str, str | None], *, json_: bool) -> None:
    explaining = Explaining(given.workspace, force)
    agent_type = asked["agent_type"] or "lead"
    mode, rules = force.rights(agent_type)
    try:
        tool, fields = call_of_words(asked["tool"] or "bash", text, explaining.known)
        call = GivenCall(tool, fields, MODES[asked["mode"] or mode], rules, asked["folder"] or "")
        judged = explaining.judge(call)
    except Misread as wrong:
        raise UsageError(f"the call cannot be read: {wrong}") from wrong
    told = call_told(judged.verdict, judged.call, judged.policy, judged.facts)
    hooks = force.hooks_of(call, agent_type)
    count = len(rules.allow) + len(rules.ask) + len(rules.deny)
    with terminal_of(given) as terminal:
        if json_:
            terminal.record(json.dumps(call_json(told, agent_type, hooks), indent=2))
        else:
            terminal.rows(
                call_block(told, text, f"agent type {agent_type}, {count} rules in force", hooks, force.inert)
            )


def _answer_lines(explaining: Explaining) -> None:
    """One answer for each line, whatever it holds, written before the next one is read."""
    for line in sys.stdin.buffer:
        verdict = explaining.line(line)
        answer = {"decision": verdict.decision, "reason": verdict.why, "by": verdict.rule}
        sys.stdout.write(f"{json.dumps(answer)}\n")
        sys.stdout.flush()
