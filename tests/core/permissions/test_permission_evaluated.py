"""Text that bash expands once more when it runs: no rule is passed by it, in any mode."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pytest
from tests.core.permissions.permission_jail import Jail, jail_works

from callboard.adapters.shell.parser import BashParser
from callboard.adapters.shell.paths import PathJudge
from callboard.core.permissions.effects import CallFacts
from callboard.core.permissions.facts import find_facts
from callboard.core.permissions.judge import judge_call
from callboard.core.permissions.rules import parse_rule
from callboard.core.permissions.values import AgentPolicy, ProposedCall

PARSER = BashParser()
CARRIERS = (
    "[[ 'a[$({})]' -eq 1 ]]",
    "test -v 'a[$({})]'",
    "[ -v 'a[`{}`]' ]",
    "printf -v 'a[$({})]' x",
    "read 'a[$({})]' <<< 1",
    "let 'a[$({})]=1'",
    'let "a[\\$({})]=1"',
    "declare -i x='a[$({})]'",
    "declare 'a[$({})]=1'",
    "declare -n y='a[$({})]'; echo $y",
    "a=(1); unset 'a[$({})]'",
    "x='a[$({})]'; echo $((x))",
    "for x in 'a[$({})]'; do echo $((x)); done",
    "PS4='$({})'; set -x; ls",
    "x='$({})'; echo ${{x@P}}",
    "PROMPT_COMMAND='{}' bash -i < /dev/null",
    "mapfile -C '{};#' -c 1 x < README.md",
    "compgen -C '{}'",
    "compgen -W '$({})'",
    "history -s '{}'; fc -s",
    "time -- eval '{}'",
    "exec 3<<< '{}'; bash <&3",
    "bash 3<<< '{}' <&3",
    "{{ bash; }} 3<<< '{}' <&3",
    "<(){}",
    ">( ){}",
    "coproc a=1 {}",
    "coproc a[0]=1 {}",
    "coproc 2>&1 {}",
    "coproc bash <<< '{}'",
    "coproc bash <<< '{}' > /dev/null; wait",
    "eval sh <<E\n{}\nE",
    "sh -c sh <<E\n{}\nE",
    "[[ a == @(b|$({})) ]]",
    "cat <<E\nfoo\nE\\\n\n{}\nE",
    "cat <<E\n${{x:-\nE\n{}\n}}\nE",
    "echo $(cat <<E\nE{} )\nE\n)",
    "echo \"${{x:-'$({})'}}\"",
    "echo \"${{x:-${{y-'`{}`'}}}}\"",
    "cat <<E\n${{x:-'$({})'}}\nE",
    "echo \"${{x:-$'$({})'}}\"",
    "sh -c 'echo \"${{x:-'\\''}}\"; {}; echo \"'\\''}}\"'",
    "(( 'a[$({})]' ))",
    "a['$({})']=1",
    "a=(['$({})']=1)",
    "a=(1); echo ${{a[$'\\x24({})']}}",
    "let 'a[$''({})]'",
    "y=1; echo ${{y:'a[$({})]'}}",
    "echo $(( ${{x:-'a[$({})]'}} ))",
    ": ${{x:='a[$({})]'}}; echo $((x))",
    "read x <<< 'a[$({})]'; echo $((x))",
    "x=('a[$({})]'); ((x))",
    "x+='a[$({})]'; echo $((x))",
    "f() {{ [[ $1 -eq 1 ]]; }}; f 'a[$({})]'",
    "echo 'a[$({})]' | {{ read x; echo $((x)); }}",
    "declare -a 'a=($({}))'",
    "declare -a a='($({}))'",
    "typeset -A 'a=([x]=$({}))'",
    "shopt -s expand_aliases\nBASH_ALIASES[ls]='{};'\nls",
    'trap "${{x:-{}}}" EXIT',
    'trap "ls; $(echo {})" EXIT',
    "f() {{ sh; }}; echo '{}' | f",
    "f() {{ nice sh; }}; f <<< '{}'",
    "env a.b=1 {}",
    "env =1 {}",
    "env -S '-i {}'",
    "env -S '-S \"{}\"'",
    "env PROMPT_COMMAND='{}' bash -i <<< ls",
    "env 'BASH_FUNC_ls%%=() {{ {}; }}' bash -c ls",
    "ENV='$({})' sh -i < /dev/null",
)
"""Commands that run what stands in place of `{}`, or of `E{}`."""


@pytest.fixture(scope="module")
def judge(tmp_path_factory: pytest.TempPathFactory) -> PathJudge:
    root = tmp_path_factory.mktemp("evaluated")
    (root / "README.md").write_text("x")
    return PathJudge(root, home=Path("/home/me"))


def decision(command: str, judge: PathJudge, policy: AgentPolicy) -> str:
    call = ProposedCall("bash", {"command": command}, "unknown")
    facts = find_facts(call, CallFacts(root=judge.root, home=judge.home, git_quiet=True), PARSER.parse, judge.look)
    return judge_call(call, policy, facts).decision


@pytest.mark.parametrize("carrier", CARRIERS)
def test_no_text_that_bash_expands_again_passes_a_rule(carrier: str, judge: PathJudge) -> None:
    denied = AgentPolicy(mode="bypassPermissions", deny=(parse_rule("Bash(rm:*)"),))
    assert decision(carrier.format("rm x"), judge, denied) != "allow"
    assert decision(carrier.format("sudo x"), judge, AgentPolicy(mode="bypassPermissions")) != "allow"
    every = AgentPolicy(allow=(parse_rule("Bash"),))
    assert decision(carrier.format("rm x"), judge, every) == "ask"


@pytest.mark.skipif(not jail_works(), reason="no jail: bubblewrap is missing or may not unshare here")
def test_bash_runs_what_these_commands_hold(tmp_path: Path) -> None:
    started = Jail(tmp_path, ("ls", "cat", "rm")).started([carrier.format("rm x") for carrier in CARRIERS])
    assert missing(started) == []


def missing(started: Iterable[set[str]]) -> list[str]:
    return [carrier for carrier, names in zip(CARRIERS, started, strict=True) if "rm" not in names]


@pytest.mark.parametrize(
    "command",
    [
        "exec 2>&1; make",
        "exec 2>&1; bash README.md",
        "curl x | bash",
        "read -r x < README.md",
        "mapfile -t lines < README.md",
        "export PS1='\\w $ '",
        "NOTE='use `sudo` or $(id)'; echo done",
        "x='a[1]'; echo $((x))",
        "printf -v x '%s' a",
        "compgen -c",
        "eval cat <<E\nx\nE",
        "time ls",
        "let 'x = 1'",
        "echo ${x@Q}",
        "echo \"${x:-'none'}\"",
        "env A=1 b.c=2 make",
        'trap "cd $PWD; rm -f $x" EXIT',
        'x=$(mktemp -d); trap "rm -f $x" EXIT',
        'find "$PWD/src" -name "*.py" -exec grep -l "$USER" {} +',
        "find $x -exec sh -c 'wc -l $1' _ {} \\;",
        "f() { curl $1 | sh; }; f x",
        "f() { bash README.md; }; f",
        "declare -a a=(1 2); x='(a)'; echo \"${a[0]}\"",
        "env -S 'make all'",
        "echo \"${x//'$'/y}\"",
        "x='`a`'; echo $((1 + 2)) ${#x}",
        "awk '{print $(NF-1)}' README.md; echo $(( $(wc -l < README.md) + 1 ))",
        'a[\'$HOME\']=1; b=("$(ls)"); echo "${a[$(wc -l < README.md)]}"',
    ],
)
def test_ordinary_uses_stay_allowed_in_bypass(command: str, judge: PathJudge) -> None:
    assert decision(command, judge, AgentPolicy(mode="bypassPermissions")) == "allow"


@pytest.mark.parametrize(
    "command",
    [
        'find . -exec sh -c "$(cat README.md)" \\;',
        "find . -name x -exec ${x:-sudo} x \\;",
        "find . -exec env $x a {} +",
    ],
)
def test_find_asks_about_an_unknown_program(command: str, judge: PathJudge) -> None:
    assert decision(command, judge, AgentPolicy(mode="bypassPermissions")) == "ask"
