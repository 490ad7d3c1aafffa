"""Rules cover what they say and no more; deny and ask rules see through wrappers."""

from __future__ import annotations

from pathlib import Path

import pytest

from callboard.adapters.shell.parser import BashParser
from callboard.adapters.shell.paths import PathJudge
from callboard.core.permissions.effects import CallFacts
from callboard.core.permissions.facts import find_facts
from callboard.core.permissions.judge import judge_call
from callboard.core.permissions.rules import names_path, parse_rule
from callboard.core.permissions.values import AgentPolicy, Decision, EffectClass, Mode, ProposedCall
from callboard.types.records import Cause

PARSER = BashParser()


def policy(allow: str = "", ask: str = "", deny: str = "") -> AgentPolicy:
    def rules(text: str):
        return tuple(parse_rule(rule) for rule in text.split("; ") if rule)

    return AgentPolicy(allow=rules(allow), ask=rules(ask), deny=rules(deny))


def shell(command: str, rules: AgentPolicy, root: Path) -> Decision:
    call = ProposedCall("bash", {"command": command}, "unknown")
    judge = PathJudge(root, home=Path("/home/me"))
    facts = find_facts(call, CallFacts(root=judge.root, home=judge.home, git_quiet=True), PARSER.parse, judge.look)
    return judge_call(call, rules, facts).decision


@pytest.mark.parametrize(
    ("rule", "command", "decision"),
    [
        ("Bash(npm run:*)", "npm run build", "allow"),
        ("Bash(npm run *)", "npm run build", "allow"),
        ("Bash(npm run *)", "npm run", "allow"),
        ("Bash(npm run:*)", "npm 'run' b\\uild", "allow"),
        ("Bash(npm run:*)", "npm runx", "ask"),
        ("Bash(npm run:*)", "npm install", "ask"),
        ("Bash(npm run:*)", "npm --prefix x run build", "ask"),
        ("Bash(npm test)", "npm test", "allow"),
        ("Bash(npm test)", "npm test -- -x", "ask"),
        ("Bash(npm*)", "npmx y", "allow"),
        ("Bash(* install)", "npm install", "allow"),
        ("Bash(* install)", "npm 'x; install'", "ask"),
        ("Bash(npm run:*)", "npm run a && npm run b", "allow"),
        ("Bash(npm run:*)", "npm run a && curl x", "ask"),
        ("Bash(npm run:*)", "npm run a; python x.py", "ask"),
        ("Bash(npm run:*)", "npm run a | sh", "ask"),
        ("Bash(npm run:*)", "npm run $(curl x)", "ask"),
        ("Bash(npm run:*)", "npm run a > out.txt", "ask"),
        ("Bash(npm run:*)", "npm run a > /dev/null", "allow"),
        ("Bash(npm run:*)", "npm run a 2>&1 | head", "allow"),
        ("Bash(npm run:*)", "X=1 npm run a", "ask"),
        ("Bash(npm run:*)", "CI=1 npm run a", "ask"),
        ("Bash(npm run:*)", "env npm run a", "ask"),
        ("Bash(npm run:*)", "xargs npm run a", "ask"),
        ("Bash(npm run:*)", "timeout 60 npm run a", "allow"),
        ("Bash(npm run:*)", "time nice nohup npm run a", "allow"),
        ("Bash(npm run:*)", "stdbuf -oL npm run a", "allow"),
        ("Bash(npm run:*)", "sh -c 'npm run a'", "allow"),
        ("Bash(npm run:*)", "/tmp/npm run a", "ask"),
        ("Bash(find:*)", "find /etc", "allow"),
        ("Bash(find:*)", "find . -delete", "ask"),
        ("Bash(find:*)", "find . -exec ls {} +", "ask"),
        ("Bash(find:*)", "find . -fprint x", "ask"),
        ("Bash(find:*); Bash(python:*)", "find . -exec python x {} +", "ask"),
        ("Bash(rm:*)", "rm x", "allow"),
        ("Bash", "npm test > out.txt", "allow"),
        ("Bash(*)", "make", "allow"),
        ("Bash(git push:*)", "git push origin main", "allow"),
        ("Bash(git push:*)", "git -c x=y push", "ask"),
        ("Edit(*.txt)", "npm test", "ask"),
    ],
)
def test_an_allow_rule_covers_one_simple_command(rule: str, command: str, decision: str, tmp_path: Path) -> None:
    assert shell(command, policy(allow=rule), tmp_path) == decision


@pytest.mark.parametrize(
    ("rule", "command", "decision"),
    [
        ("Bash(git push:*)", "git push", "deny"),
        ("Bash(git push:*)", "git push --force", "deny"),
        ("Bash(git push:*)", "git -C x push", "deny"),
        ("Bash(git push:*)", "git -c a=b --no-pager push", "deny"),
        ("Bash(git push:*)", "/usr/bin/git push", "deny"),
        ("Bash(git push:*)", "env git push", "deny"),
        ("Bash(git push:*)", "X=1 git push", "deny"),
        ("Bash(git push:*)", "xargs git push", "deny"),
        ("Bash(git push:*)", "ls; sh -c 'git push'", "deny"),
        ("Bash(git push:*)", "find . -exec git push {} +", "deny"),
        ("Bash(git push:*)", "busybox nice g''it push", "deny"),
        ("Bash(git push:*)", "echo $(git push)", "deny"),
        ("Bash(git push:*)", "git pu{sh,ll}", "deny"),
        ("Bash(git push:*)", "git $X", "ask"),
        ("Bash(git push:*)", "git status", "allow"),
        ("Bash(git push:*)", "echo git push", "allow"),
        ("Bash(git push:*)", "watch -n 5 git push", "deny"),
        ("Bash(git push:*)", "entr -r git push", "deny"),
        ("Bash(git push:*)", "sandbox-exec -p x git push", "deny"),
        ("Bash(rm:*)", "fd -e pyc -x rm", "deny"),
        ("Bash(ruff:*)", "uvx ruff check", "deny"),
        ("Bash(ruff:*)", "pipx run ruff check", "deny"),
        ("Bash(git push:*)", "strace -f git push", "deny"),
        ("Bash(git push:*)", "ionice -c 2 git push", "deny"),
        ("Bash(git push:*)", "uv run git push", "deny"),
        ("Bash(git push:*)", "direnv exec . git push", "deny"),
        ("Bash(git push:*)", "npx git push", "deny"),
        ("Bash(git push:*)", "trap -- 'git push' EXIT", "deny"),
        ("Bash(git push:*)", "shopt -s expand_aliases; alias p='git push'", "deny"),
        ("Bash(git push:*)", "echo git push | bash -", "deny"),
        ("Bash(git push:*)", "git pus?", "ask"),
        ("Bash(git push:*)", "git p* origin", "ask"),
        ("Bash(git push:*)", "git a* origin", "ask"),
        ("Bash(git push:*)", "git p", "ask"),
        ("Bash(git push *)", "git -C src p origin", "ask"),
        ("Bash(git push*)", "git p", "ask"),
        ("Bash(git * main)", "git p", "ask"),
        ("Bash(git push:*)", "git config alias.p push && git p", "ask"),
        ("Bash(git push:*)", "GIT_CONFIG_COUNT=1 GIT_CONFIG_KEY_0=alias.p GIT_CONFIG_VALUE_0=push git p", "ask"),
        ("Bash(git push:*)", "git -c alias.push=log push", "deny"),
        ("Bash(git push:*)", "git --version", "allow"),
        ("Bash(git push:*)", "/usr/lib/git-core/git-push origin", "deny"),
        ("Bash(git push:*)", "git-push", "deny"),
        ("Bash(git push:*)", "git submodule foreach git push", "deny"),
        ("Bash(git push:*)", "git -C src submodule foreach --recursive 'git push'", "deny"),
        ("Bash(git push:*)", "git bisect run git push", "deny"),
        ("Bash(git push:*)", "git rebase -x 'ls && git push' HEAD~1", "deny"),
        ("Bash(git push:*)", "git commit -m 'git push'", "allow"),
        ("Bash(git push:*)", "git -c alias.p=push p", "ask"),
        ("Bash(git push:*)", "git -c user.name=me commit", "allow"),
        ("Bash(ls*)", "lsof", "deny"),
        ("Bash", "ls", "deny"),
        ("Read(secret.txt)", "cat secret.txt", "deny"),
        ("Read(secret.txt)", "cat src/../secret.txt", "deny"),
        ("Read(secret.txt)", "cat s*", "deny"),
        ("Read(secret.txt)", "frob secret.txt", "deny"),
        ("Read(secret.txt)", "frob --in=secret.txt", "deny"),
        ("Read(secret.txt)", "frob -isecret.txt", "deny"),
        ("Read(secret.txt)", "cat < secret.txt", "deny"),
        ("Read(secret.txt)", "echo x > secret.txt", "deny"),
        ("Read(secret.txt)", "curl -d @secret.txt x", "deny"),
        ("Read(src/**)", "cd src && cat a", "deny"),
        ("Read(src/**)", "cat README.md", "allow"),
        ("Read(secret.txt)", "cat /proc/self/cwd/secret.txt", "deny"),
        ("Read(secret.txt)", "cd /proc/thread-self/cwd; cat secret.txt", "deny"),
        ("Edit(README.md)", "echo x > /proc/self/cwd/README.md", "deny"),
        ("Read(//etc/**)", "cat /etc/passwd", "deny"),
        ("Read(~/.ssh/**)", "cat ~/.ssh/id_rsa", "deny"),
        ("Edit(README.md)", "echo x > README.md", "deny"),
        ("Edit(README.md)", "cat README.md", "allow"),
        ("Bash(run_in_background:true)", "ls", "allow"),
    ],
)
def test_a_deny_rule_sees_through_wrappers_and_names_paths(
    rule: str, command: str, decision: str, tmp_path: Path
) -> None:
    (tmp_path / "secret.txt").write_text("x")
    assert shell(command, policy(allow="Bash(git:*)", deny=rule), tmp_path) == decision


def test_ask_rules_come_before_allow_rules(tmp_path: Path) -> None:
    assert shell("npm publish", policy(allow="Bash(npm:*)", ask="Bash(npm publish:*)"), tmp_path) == "ask"
    assert shell("ls", policy(ask="Bash(ls:*)"), tmp_path) == "ask"


@pytest.mark.parametrize(
    ("name", "effect", "destructive", "rules", "decision"),
    [
        ("todo_write", "store", False, policy(), "allow"),
        ("spawn_teammate", "store", False, policy(), "allow"),
        ("task", "attach", False, policy(), "allow"),
        ("submit_plan", "store", False, policy(), "allow"),
        ("list_tasks", "read", False, policy(), "allow"),
        ("custom", "unknown", False, policy(), "ask"),
        ("custom", "reconcile", False, policy(), "ask"),
        ("mcp__db__query", "read", False, policy(), "ask"),
        ("mcp__db__drop", "unknown", False, policy(), "ask"),
        ("mcp__db__drop", "read", True, policy(), "ask"),
        ("mcp__db__drop", "unknown", False, policy(allow="mcp__db__*"), "allow"),
        ("mcp__db__drop", "unknown", True, policy(allow="mcp__db"), "allow"),
        ("mcp__db__drop", "unknown", True, policy(allow="mcp__db__drop"), "allow"),
        ("mcp__db__drop", "unknown", False, policy(allow="mcp__db__query"), "ask"),
        ("mcp__db__drop", "unknown", False, policy(allow="mcp__db", ask="mcp__db__drop"), "ask"),
        ("mcp__db__drop", "unknown", False, policy(allow="mcp__db", deny="mcp__db__drop"), "deny"),
        ("mcp__db__query", "read", False, policy(deny="mcp__db"), "deny"),
        ("mcp__db__query", "read", False, policy(deny="mcp__db__q*"), "deny"),
        ("mcp__db__query", "read", False, policy(deny="mcp__*"), "deny"),
        ("mcp__dbx__query", "read", False, policy(deny="mcp__db"), "ask"),
        ("task", "attach", False, policy(deny="Task(explore)"), "deny"),
        ("task", "attach", False, policy(deny="Task(plan)"), "allow"),
        ("task", "attach", False, policy(ask="Agent"), "ask"),
        ("custom", "unknown", False, policy(allow="custom"), "allow"),
        ("custom", "unknown", False, policy(allow="*"), "ask"),
        ("custom", "unknown", False, policy(deny="c*"), "deny"),
        ("custom", "unknown", False, policy(deny="custom(agent_type:exp*)"), "deny"),
    ],
)
def test_other_tools(name: str, effect: EffectClass, destructive: bool, rules: AgentPolicy, decision: str) -> None:
    call = ProposedCall(name, {"agent_type": "explore"}, effect)
    assert judge_call(call, rules, CallFacts(destructive=destructive)).decision == decision


@pytest.mark.parametrize("effect", ["read", "unknown", "store", "attach", "reconcile"])
@pytest.mark.parametrize("destructive", [True, False])
@pytest.mark.parametrize(
    ("mode", "decision"),
    [
        ("default", "ask"),
        ("acceptEdits", "ask"),
        ("sandboxed", "ask"),
        ("plan", "deny"),
        ("dontAsk", "deny"),
        ("bypassPermissions", "allow"),
    ],
)
def test_what_a_server_says_of_its_tool_lifts_nothing(
    effect: EffectClass, destructive: bool, mode: Mode, decision: str
) -> None:
    verdict = judge_call(
        ProposedCall("mcp__db__query", {}, effect), AgentPolicy(mode=mode), CallFacts(destructive=destructive)
    )
    assert verdict.decision == decision


def test_a_tool_of_a_server_asks_with_what_its_server_says_of_it() -> None:
    def why(effect: EffectClass, *, destructive: bool) -> str:
        return judge_call(ProposedCall("mcp__db__query", {}, effect), policy(), CallFacts(destructive=destructive)).why

    assert why("read", destructive=False) == "only its server states that it only reads"
    assert why("unknown", destructive=False) == "the tool's server does not annotate it as read-only"
    assert why("unknown", destructive=True) == "the tool's server annotates it as destructive"


@pytest.mark.parametrize("mode", ["default", "acceptEdits", "sandboxed", "bypassPermissions"])
def test_a_tool_whose_server_wants_a_person_asks_whatever_rules_and_modes_say(mode: Mode) -> None:
    call, facts = ProposedCall("mcp__pay__send", {}, "read"), CallFacts(person_only=True)
    allowed = AgentPolicy(mode=mode, allow=policy(allow="mcp__pay__send").allow)
    assert judge_call(call, allowed, facts).decision == "ask"
    assert judge_call(call, allowed, CallFacts()).decision == "allow"
    denied = AgentPolicy(mode=mode, deny=policy(deny="mcp__pay__send").deny)
    assert judge_call(call, denied, facts).decision == "deny"


@pytest.mark.parametrize("authority", ["person", "lead", "teammate", "schedule", "tool"])
def test_what_gives_others_more_asks_a_person_in_a_turn_that_has_less(authority: Cause) -> None:
    enough = authority in ("person", "lead")
    for name, given in (("schedule_cron", {"cron": "@daily"}), ("review_plan", {"approve": True})):
        call = ProposedCall(name, given, "store", authority)
        for rules in (policy(), policy(allow=name), AgentPolicy("bypassPermissions"), AgentPolicy("acceptEdits")):
            verdict = judge_call(call, rules, CallFacts())
            assert (verdict.decision, verdict.rule == "T") == (("allow", False) if enough else ("ask", True))
        denied = judge_call(call, AgentPolicy("dontAsk"), CallFacts())
        assert denied.decision == ("allow" if enough else "deny")
    for name, effect in (
        ("list_crons", "read"),
        ("cancel_cron", "store"),
        ("send_message", "store"),
        ("task", "attach"),
    ):
        assert judge_call(ProposedCall(name, {}, effect, authority), policy(), CallFacts()).decision == "allow"


def test_throwing_away_unmerged_work_always_asks_a_person() -> None:
    call = ProposedCall("remove_worktree", {"name": "a", "discard_changes": True}, "unknown")
    for rules in (policy(allow="remove_worktree"), AgentPolicy("bypassPermissions")):
        verdict = judge_call(call, rules, CallFacts())
        assert (verdict.decision, verdict.rule) == ("ask", "T")
    assert judge_call(call, policy(deny="remove_worktree"), CallFacts()).decision == "deny"


@pytest.mark.parametrize("text", ["", "Bash(", "(x)", "Bash)x(", "a b"])
def test_what_is_no_rule_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(ValueError, match="is not a rule"):
        parse_rule(text)


@pytest.mark.parametrize(
    ("pattern", "path", "named"),
    [
        ("x.py", "/w/x.py", True),
        ("x.py", "/w/a/b/x.py", True),
        ("x.py", "/w/x.pyc", False),
        ("/x.py", "/w/x.py", True),
        ("/x.py", "/w/a/x.py", False),
        ("./x.py", "/w/x.py", True),
        ("./.env", "/w/.env", True),
        ("src", "/w/src/a/b", True),
        ("src/*", "/w/src/a", True),
        ("src/**", "/w/src/a/b", True),
        ("src/**/x", "/w/src/x", True),
        ("*.env", "/w/a.env", True),
        ("//etc/*", "/etc/passwd", True),
        ("//etc/*", "/w/etc/passwd", False),
        ("~/.ssh/**", "/h/.ssh/id", True),
        ("x", "/other/x", False),
    ],
)
def test_path_rules_match_as_in_a_gitignore(pattern: str, path: str, named: bool) -> None:
    assert names_path(pattern, path, "/w", "/h", anywhere=False) is named


@pytest.mark.parametrize(
    ("command", "decision"),
    [
        ("git diff --output=.callboard/settings.json", "deny"),
        ("git log --out .callboard/settings.json", "deny"),
        ("git diff --output=.git/hooks/pre-commit", "ask"),
        ("git -C src diff --output=../.git/hooks/pre-commit", "ask"),
        ("git archive -o.callboard/x HEAD", "deny"),
        ("git checkout -- .callboard/settings.json", "deny"),
        ("git restore .callboard/settings.json", "deny"),
        ("git mv .callboard x", "deny"),
        ("git rm .callboard/settings.json", "deny"),
        ("git config -f .callboard/x a.b c", "deny"),
        ("git clone https://x/y .callboard/y", "deny"),
        ("git checkout -- kept/a.py", "deny"),
        ("git restore --staged .callboard/settings.json", "allow"),
        ("git rm --cached .callboard/settings.json", "allow"),
        ("git checkout main", "allow"),
        ("git checkout -- .", "allow"),
        ("git diff --output=changes.txt", "allow"),
        ("git log --oneline", "allow"),
        ("sed -n 'w .callboard/settings.json' README.md", "deny"),
        ("sed 's/a/b/w .git/hooks/pre-commit' README.md", "ask"),
        ("sed --debug -i s/a/b/ .callboard/settings.json", "deny"),
        ("sed 'r kept/a.py' README.md", "deny"),
        ("sed -n 'w out.txt' README.md", "allow"),
        ("awk '{print > \".callboard/settings.json\"}' README.md", "deny"),
        ("awk -i inplace 1 .callboard/settings.json", "deny"),
        ("awk '{print > \"out.txt\"}' README.md", "allow"),
        ("find . -name a.py", "allow"),
        ("find $X", "ask"),
        ('find "$(cat README.md)"', "ask"),
    ],
)
def test_an_allow_rule_covers_no_protected_file_that_a_command_names(
    command: str, decision: str, tmp_path: Path
) -> None:
    rules = policy(allow="Bash(git:*); Bash(find:*); Bash(sed:*); Bash(awk:*)", deny="Edit(kept/**); Read(kept/**)")
    assert shell(command, rules, tmp_path) == decision


def test_a_rule_with_thousands_of_options_is_decided_quickly(tmp_path: Path) -> None:
    assert shell("git " + "-x " * 3_000 + "push", policy(deny="Bash(git push:*)"), tmp_path) == "deny"
