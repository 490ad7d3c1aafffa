"""Shell commands are judged by what they do. The tables stand in `permission_cases/`, one command a line."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from callboard.adapters.shell.parser import BashParser
from callboard.adapters.shell.paths import PathJudge
from callboard.core.permissions import command_table as commands
from callboard.core.permissions import programs
from callboard.core.permissions.effects import CallFacts
from callboard.core.permissions.facts import find_facts
from callboard.core.permissions.judge import judge_call, only_reads
from callboard.core.permissions.rules import parse_rule
from callboard.core.permissions.values import AgentPolicy, Arg, HardRules, ProgramWords, ProposedCall, Verdict

CASES = Path(__file__).parent / "permission_cases"
PARSER = BashParser()
ACCEPT = AgentPolicy(mode="acceptEdits")


def table(decision: str) -> list[str]:
    return [line for line in (CASES / f"{decision}.txt").read_text().split("\n") if line]


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("case") / "workspace"
    (root / "src").mkdir(parents=True)
    (root / ".git").mkdir()
    (root / "src/a.py").write_text("print()\n")
    (root / "README.md").write_text("hello\n")
    (root / ".env").write_text("KEY=1\n")
    (root / ".git/config").write_text("[core]\n\tbare = false\n[user]\n\tname = x\n")
    (root.parent / "state").mkdir()
    return root


def facts_of_all(commands: Iterable[str], root: Path) -> dict[str, CallFacts]:
    judge = PathJudge(root, own=[root.parent / "state"], home=Path("/home/me"))
    start = CallFacts(root=judge.root, home=judge.home, git_quiet=judge.git_quiet)
    calls = {command: ProposedCall("bash", {"command": command}, "unknown") for command in commands}
    return {command: find_facts(call, start, PARSER.parse, judge.look) for command, call in calls.items()}


def facts_of(command: str, root: Path) -> CallFacts:
    return facts_of_all([command], root)[command]


def judged(command: str, root: Path, policy: AgentPolicy | None = None) -> Verdict:
    return judge_call(
        ProposedCall("bash", {"command": command}, "unknown"), policy or AgentPolicy(), facts_of(command, root)
    )


@pytest.fixture(scope="module")
def found(workspace: Path) -> dict[str, CallFacts]:
    """The facts of every command of the tables: they are found out once for all tests."""
    return facts_of_all((command for d in ("allow", "ask", "deny") for command in table(d)), workspace)


@pytest.mark.parametrize("decision", ["allow", "ask", "deny"])
def test_every_command_of_the_tables_gets_its_decision(decision: str, found: dict[str, CallFacts]) -> None:
    commands = table(decision)
    assert len(commands) > 500
    verdicts = {
        c: judge_call(ProposedCall("bash", {"command": c}, "unknown"), AgentPolicy(), found[c]) for c in commands
    }
    assert {c: v for c, v in verdicts.items() if v.decision != decision} == {}


def test_rule_r_for_the_plan_gate_is_what_is_allowed_by_default(found: dict[str, CallFacts]) -> None:
    assert {command for command in found if only_reads(command, found[command])} == set(table("allow"))


EVERYDAY_THAT_ASK = ("cd src; ls; cd ..", "grep -rn foo .")
"""Plainly read-only commands that ask all the same: without `&&` the first `cd` may have failed, so that the second one
leaves the workspace, and the workspace of the tests holds a secret that a search of everything would show."""


def test_no_dangerous_command_runs_unasked_and_few_reading_ones_ask(
    found: dict[str, CallFacts], workspace: Path
) -> None:
    dangerous, everyday = [*table("ask"), *table("deny")], [*table("allow"), *EVERYDAY_THAT_ASK]
    unasked = [command for command in dangerous if only_reads(command, found[command])]
    assert not unasked, f"{len(unasked)} of {len(dangerous)} dangerous commands run unasked: {unasked}"
    every = found | {command: facts_of(command, workspace) for command in EVERYDAY_THAT_ASK}
    asking = [command for command in everyday if not only_reads(command, every[command])]
    assert len(asking) <= 0.03 * len(everyday), f"{len(asking)} of {len(everyday)} reading commands ask: {asking}"
    assert asking == list(EVERYDAY_THAT_ASK)


def test_a_command_without_facts_is_never_taken_for_reading() -> None:
    assert not only_reads("ls", CallFacts())
    assert judge_call(ProposedCall("bash", {"command": "ls"}, "unknown"), AgentPolicy(), CallFacts()).decision == "ask"


@pytest.mark.parametrize(
    ("command", "decision"),
    [
        ("cat <<E | bash\nrm -rf /\nE", "deny"),
        ("bash <<'E'\nsudo ls\nE", "deny"),
        ("bash <<-E\n\trm -rf /\n\tE", "deny"),
        ("cat <<E\n$(rm -rf /)\nE", "deny"),
        ("cat <<'E'\n$(rm -rf /)\nE", "allow"),
        ("cat <<E\nhello\nE", "allow"),
        ("bash <<E\nls\nE", "allow"),
        ("bash <<E\n$X\nE", "ask"),
        ("r\\\nm -rf /", "deny"),
        ("rm \\\n -rf \\\n /", "deny"),
        ("ls\nrm -rf /", "deny"),
        ("ls\n# rm -rf /\npwd", "allow"),
        ("ls\x00", "deny"),
        ("rm\u00a0-rf /", "ask"),
        ("l\u200bs", "ask"),
        ("ls \u202e", "ask"),
        ("ls\r", "ask"),
        ("ls \x1b[2J", "ask"),
        ("ls " + "a" * 10_000, "ask"),
        ("(" * 500 + "ls" + ")" * 500, "ask"),
        ("echo " + "$(" * 100 + "ls" + ")" * 100, "ask"),
        ("cat {1..1000}", "ask"),
        ("cat .callboard/settings.yaml", "allow"),
        ("echo x > .callboard/settings.yaml", "deny"),
        ("cp README.md .callboard/hooks/x", "deny"),
        ("rm -rf .callboard", "deny"),
        ("sed -i s/a/b/ .callboard/settings.yaml", "deny"),
        ("rm -rf ../state/x", "deny"),
        ("python3 x.py ../state/db", "deny"),
        ("mv .callboard x", "deny"),
        ("cd ../state && cat db", "deny"),
    ],
)
def test_long_odd_and_own(command: str, decision: str, workspace: Path) -> None:
    assert judged(command, workspace).decision == decision


@pytest.mark.parametrize(
    "command",
    [
        "touch x",
        "mkdir -p a/b",
        "echo hi > out.txt",
        "sed -i s/a/b/ README.md",
        "tee x",
        "cp README.md x",
        "sort -o x README.md",
        "ls && touch x",
        "mv README.md y",
    ],
)
def test_accept_edits_lets_ordinary_files_be_written(command: str, workspace: Path) -> None:
    expected = "ask" if command.startswith("sort") else "allow"
    assert judged(command, workspace, ACCEPT).decision == expected
    assert judged(command, workspace).decision == "ask"


@pytest.mark.parametrize(
    "command",
    [
        "rm x",
        "chmod +x src/a.py",
        "chmod 777 x",
        "ln -s a b",
        "tar xf a.tar",
        "dd if=README.md of=x",
        "git commit -m x",
        "patch",
        "python3 x.py",
        "X=1 ls",
        "cat .env",
        "echo x > .git/config",
        "echo x > ../y",
        "curl x",
        "> README.md",
        "truncate x",
        "cp x/.mcp.json .",
        "echo x > /etc/y",
        "echo x > .env",
        "touch ~/x",
        "mkdir -m 777 x",
        "frobnicate",
        "ls | xargs cat",
    ],
)
def test_accept_edits_still_asks_for_all_else(command: str, workspace: Path) -> None:
    assert judged(command, workspace, ACCEPT).decision == "ask"


def test_no_mode_and_no_rule_lifts_what_is_never_run(workspace: Path) -> None:
    for mode in ("default", "acceptEdits", "plan", "dontAsk", "bypassPermissions"):
        policy = AgentPolicy(
            mode=mode, allow=(parse_rule("Bash"), parse_rule("Bash(rm:*)"), parse_rule("Bash(sudo *)"))
        )
        for command in ("rm -rf /", "sudo ls", "sh -c 'shutdown now'", "cat ../state/db"):
            assert judged(command, workspace, policy).decision == "deny"


def test_the_floor_of_asks_is_lifted_by_no_rule_and_no_mode(workspace: Path) -> None:
    for mode in ("default", "acceptEdits", "bypassPermissions"):
        policy = AgentPolicy(mode=mode, allow=(parse_rule("Bash"), parse_rule("Bash(rm:*)")))
        for command in ("find . -delete", "echo x > /etc/y", "chmod 777 x", "$X", "l\u200bs", "rm $X"):
            assert judged(command, workspace, policy).decision == "ask"


@pytest.mark.parametrize(
    "command",
    [
        *(". <(echo sudo id)", "source <(base64 -d <<< c3VkbyBpZA==)", "bash <(echo sudo id)", ". $(echo x.sh)"),
        *("bash /dev/stdin <<< 'sudo id'", "sh -- /dev/./fd/0 <<< 'sudo id'", "bash /dev/fd/3 3<<< 'sudo id'"),
        *("echo sudo id | bash /proc/self/fd/0", "source -- <(echo sudo id)", ". /dev//stdin <<< 'sudo id'"),
        *(
            "hash -p /usr/bin/sudo zz; zz id",
            "hash -p/usr/bin/sudo zz && zz id",
            "builtin hash -rp /bin/rm zz; zz -r /",
        ),
    ],
)
def test_no_mode_lifts_the_ask_for_a_script_or_a_program_that_has_another_name_when_it_runs(
    command: str, workspace: Path
) -> None:
    policy = AgentPolicy(mode="bypassPermissions", allow=(parse_rule("Bash"), parse_rule("Bash(hash:*)")))
    assert judged(command, workspace, policy).decision in ("ask", "deny")


@pytest.mark.parametrize("command", [". venv/bin/activate", '. "$VENV/bin/activate"', "hash -r"])
def test_bypassing_allows_sourced_files_and_an_emptied_table_of_programs(command: str, workspace: Path) -> None:
    assert judged(command, workspace, AgentPolicy(mode="bypassPermissions")).decision == "allow"


@pytest.mark.parametrize(
    ("rule", "command", "decision"),
    [
        ("Bash(rm:*)", "rm x", "allow"),
        ("Bash(rm:*)", "rm -rf src", "allow"),
        ("Bash(rm -rf src)", "rm -rf src", "allow"),
        ("Bash(rm -rf src)", "rm -rf docs", "ask"),
        ("Bash(rm build/*)", "rm build/x", "allow"),
        ("Bash(rm build/*)", "rm build/*", "allow"),
        ("Bash(rm build/*)", "rm build/a/b build/c", "allow"),
        ("Bash(rm build/*)", "rm build/../src/a.py", "ask"),
        ("Bash(rm build/*)", "rm build/x src/a.py", "ask"),
        ("Bash(rm build/*)", "cd src && rm build/x", "ask"),
        ("Bash(rm -rf build/*)", "rm -rf build/x && ls", "allow"),
        ("Bash(rm -rf build/*)", "rm -rf build/x && touch y", "ask"),
        ("Bash(rmdir:*)", "rmdir src", "allow"),
        ("Bash(rmdir:*)", "rm -rf src", "ask"),
        ("Bash(rm:*)", "rm *", "allow"),
        ("Bash(rm:*)", "rm .env", "ask"),
        ("Bash(rm:*)", "rm $X", "ask"),
        ("Bash(rm:*)", "rm x$!", "ask"),
        ("Bash(rm:*)", "rm -rf .", "ask"),
        ("Bash(rm:*)", "rm -rf src/..", "ask"),
        ("Bash(rm:*)", "rm -rf ../workspace", "ask"),
        ("Bash(rm:*)", "rm ../x", "ask"),
        ("Bash(rm:*)", "rm /tmp/x", "ask"),
        ("Bash(rm:*)", "rm -rf .git", "ask"),
        ("Bash(rm:*)", "find . -delete", "ask"),
        ("Bash(rm:*)", "find . -name x -exec rm {} +", "ask"),
        ("Bash(rm:*)", "ls | xargs rm", "ask"),
        ("Bash(rm:*)", "X=1 rm x", "ask"),
        ("Bash(rm:*)", "rm -rf /", "deny"),
        ("Bash(rm:*)", "rm -rf ~", "deny"),
        ("Bash(rm:*)", "rm -rf .callboard", "deny"),
        ("Bash(rm:*)", "rm ../state/db", "deny"),
        ("Bash", "rm x", "ask"),
        ("Bash(*)", "rm x", "ask"),
        ("Bash(* x)", "rm x", "ask"),
        ("Bash(r*)", "rm x", "ask"),
    ],
)
def test_a_rule_that_names_rm_lets_it_delete_inside_the_workspace_and_nothing_else(
    rule: str, command: str, decision: str, workspace: Path
) -> None:
    assert judged(command, workspace, AgentPolicy(allow=(parse_rule(rule),))).decision == decision
    unattended = judged(command, workspace, AgentPolicy(mode="dontAsk", allow=(parse_rule(rule),))).decision
    assert unattended == ("allow" if decision == "allow" else "deny")
    assert (
        judged(command, workspace, AgentPolicy(allow=(parse_rule(rule),), deny=(parse_rule(rule),))).decision != "allow"
    )
    assert judged(command, workspace, AgentPolicy(mode="plan", allow=(parse_rule(rule),))).decision == "deny"


def test_modes_that_do_not_ask_deny_instead(workspace: Path) -> None:
    for mode in ("plan", "dontAsk"):
        assert judged("touch x", workspace, AgentPolicy(mode=mode)).decision == "deny"
        assert judged("ls", workspace, AgentPolicy(mode=mode)).decision == "allow"
    assert (
        judged("npm test", workspace, AgentPolicy(mode="plan", allow=(parse_rule("Bash(npm test)"),))).decision
        == "deny"
    )
    assert judged("npm test", workspace, AgentPolicy(mode="bypassPermissions")).decision == "allow"


def test_the_lists_of_the_floor_grow_by_settings(workspace: Path) -> None:
    policy = AgentPolicy(hard_rules=HardRules(never=frozenset({"npm"}), ask=frozenset({"ls"}), classic_dd="deny"))
    assert judged("env npm test", workspace, policy).decision == "deny"
    assert judged("nice ls", workspace, policy).decision == "ask"
    assert judged("dd if=README.md of=x", workspace, policy).decision == "deny"
    assert judged("rm -rf /", workspace, policy).decision == "deny"


def test_git_reads_only_where_its_configuration_is_quiet(workspace: Path, tmp_path: Path) -> None:
    loud = tmp_path / "loud"
    (loud / ".git").mkdir(parents=True)
    (loud / ".git/config").write_text("[core]\n\tfsmonitor = ./evil.sh\n")
    assert judged("git status", workspace).decision == "allow"
    assert judged("git status", loud).decision == "ask"
    (loud / ".git/config").write_text("[include]\n\tpath = ../evil\n")
    assert judged("git status", loud).decision == "ask"


def test_git_in_a_folder_asks_where_that_is_another_repository(workspace: Path, tmp_path: Path) -> None:
    root = tmp_path / "nested"
    for folder in ("src/deep", "vendored/.git", "vendored/inner", "bare", ".git"):
        (root / folder).mkdir(parents=True)
    (root / ".git/config").write_text("[core]\n\tbare = false\n")
    (root / "bare/HEAD").write_text("ref: refs/heads/main\n")
    (tmp_path / "outside").mkdir()
    (root / "link").symlink_to(tmp_path / "outside")
    for command in ("cd src && git log", "git -C src/deep status", f"cd {root}/src && git diff", "git -C . status"):
        assert judged(command, root).decision == "allow", command
    for folder in ("vendored", "vendored/inner", "bare", "link", "..", "/", f"{root}/vendored", "src/../vendored"):
        for command in (f"cd {folder} && git status", f"git -C {folder} status", f"env -C {folder} git status"):
            assert judged(command, root).decision == "ask", command


def test_links_out_of_the_workspace_are_followed(workspace: Path, tmp_path: Path) -> None:
    root = tmp_path / "ws"
    root.mkdir()
    (tmp_path / "ws-prefix").mkdir()
    (tmp_path / "ws-prefix/x").write_text("x")
    (root / "link").symlink_to(tmp_path / "ws-prefix")
    for command in (
        "cat link/x",
        "cat l*/x",
        "cat ../ws-prefix/x",
        f"cat {root}-prefix/x",
        "cd link && cat x",
        "grep -R x .",
    ):
        assert judged(command, root).decision == "ask", command


# Properties.

_AS_WORDS = (
    "nice {}",
    "nohup {}",
    "timeout 5 {}",
    "env {}",
    "setsid {}",
    "stdbuf -oL {}",
    "command {}",
    "xargs {}",
    "time {}",
)
_AS_SCRIPT = (
    "( {} )",
    "{{ {}; }}",
    "ls; {}",
    "ls && {}",
    "if {}; then ls; fi",
    "for i in 1; do {}; done",
    "f() {{ {}; }}; f",
)
_MORE = (
    'echo "$( {} )"',
    "! ( {} )",
    "{} | cat",
    "cat <( {} )",
    "case x in x) {};; esac",
    "while {}; do ls; done",
    "{} &\nls",
)
_TEXT = ("sh -c {}", "bash -c {}", "eval {}", "echo {} | sh", "bash <<< {}", "bash -ec {}", "env -i bash -c {}")


def _ansi(text: str) -> str:
    return "$'" + "".join(f"\\x{ord(c):02x}" for c in text) + "'"


@st.composite
def wrapped(draw: st.DrawFn) -> str:
    command = draw(
        st.sampled_from(("rm -rf /", "sudo id", "shutdown now", "mkfs /dev/sda", "find / -delete", "r\\m -fr ~"))
    )
    simple = True
    for _ in range(draw(st.integers(1, 4))):
        kind = draw(st.sampled_from(("words", "script", "text")))
        if kind == "words" and simple:
            command = draw(st.sampled_from(_AS_WORDS)).format(command)
        elif kind == "text" and "\n" not in command:
            quote = draw(st.sampled_from((shlex.quote, _ansi)))
            form = draw(st.sampled_from(_TEXT))
            command, simple = form.format(quote(command)), form[0] not in "e" and "|" not in form and "<" not in form
        else:
            command, simple = draw(st.sampled_from(_AS_SCRIPT + _MORE)).format(command), False
    return command


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(command=wrapped())
def test_a_denied_command_stays_denied_in_every_wrapping(command: str, workspace: Path) -> None:
    assert judged(command, workspace).decision == "deny"


@pytest.mark.slow(keep=7)
@pytest.mark.parametrize(
    ("piece", "end"),
    [
        ("{", ""),
        ("{a,", "}"),
        ("{a}", ""),
        ("find . -exec ", "ls"),
        ("nice --x ", "sudo"),
        ("xargs ", "ls"),
        ("! ", "ls"),
        ("sh -c ", "ls"),
        ("ls && ", "ls"),
        ("ls; ", "ls"),
        ("ls | ", "ls"),
        ("[", "]"),
        ("cd a; ", "ls"),
        ("eval ", "ls"),
        ("sed s/a/b/;", ""),
        ("<<< x ", ""),
        ("$(", ")"),
        ("env -S ", "ls"),
        ("~/", ""),
        ("a{1..9}", ""),
    ],
)
def test_the_largest_scripts_are_decided(piece: str, end: str, workspace: Path) -> None:
    command = ("x " + piece * 9_000)[:9_900] + end
    # It takes seconds. What grows with the square of the script or worse takes so long that the run is given up.
    assert judged(command, workspace).decision == "ask"
    assert judged(command[2:], workspace).decision in ("allow", "ask", "deny")


_PIECES = st.sampled_from(
    [
        "rm",
        "ls",
        " ",
        "-rf",
        "/",
        "$(",
        ")",
        "`",
        "'",
        '"',
        "\\",
        "{",
        "}",
        ",",
        "..",
        "|",
        "&&",
        ";",
        "\n",
        "<<E",
        "E",
        ">",
        "<(",
        "$X",
        "${",
        "[[",
        "]]",
        "((",
        "))",
        "*",
        "~",
        "if",
        "then",
        "fi",
        "sh -c ",
        "eval ",
        "find . -exec",
        "xargs -I",
        "env -S",
        "=",
        "$'",
    ]
)


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(text=st.one_of(st.text(max_size=60), st.lists(_PIECES, max_size=25).map("".join)))
def test_no_text_makes_the_judge_raise(text: str, workspace: Path) -> None:
    assert judged(text, workspace).decision in ("allow", "ask", "deny")


def test_no_program_of_the_tables_with_few_or_odd_arguments_makes_the_judge_raise() -> None:
    tables: list[Iterable[object]] = [programs._SPECIAL]
    tables += [value for value in vars(commands).values() if isinstance(value, (Mapping, frozenset))]
    names = {name for table in tables for name in table if isinstance(name, str)}
    assert {"tar", "git", "cat"} <= names
    for name in names:
        for args in ((), ("",), ("-",), ("--",), ("-x",), ("--x=",), ("=",)):
            list(programs.effects_of(ProgramWords(name, tuple(Arg(arg) for arg in args))))


@pytest.mark.parametrize(
    ("command", "decision"),
    [
        ("find . -name '*.pyc' -delete", "ask"),
        ("find . -type d -name __pycache__ -exec rm -rf {} +", "ask"),
        ("find . -name '*.log' -print0 | xargs -0 rm -f", "ask"),
        ("find . -delete -name '*.pyc'", "deny"),
        ("find . ! -name '*.pyc' -delete", "deny"),
        ("find . -print -name '*.pyc' | xargs rm", "deny"),
        ("find . -name '*.yaml' -delete", "deny"),
        ("find .callboard -name '*.log' -delete", "deny"),
        ("find / -name '*.pyc' -delete", "deny"),
    ],
)
def test_what_tools_leave_behind_can_be_cleaned_up_beside_the_settings(
    command: str, decision: str, tmp_path: Path
) -> None:
    (tmp_path / ".callboard").mkdir()
    (tmp_path / ".callboard/settings.yaml").touch()
    assert judged(command, tmp_path).decision == decision


@pytest.mark.parametrize("command", ["git fsck", "git config --list", "git remote add x y", "git help log"])
def test_a_git_command_is_not_said_to_do_what_it_does_not(command: str, workspace: Path) -> None:
    why = judged(command, workspace).why
    assert "changes the repository" not in why or "or may" in why
    assert not why.endswith("talks to another repository")


@pytest.mark.parametrize(
    ("command", "letter"),
    [("git checkout -b x", "E"), ("git clean -n", "E"), ("git checkout .", "D"), ("git clean -fd", "D")],
)
def test_a_question_says_that_git_can_delete_work_only_if_it_can(command: str, letter: str, workspace: Path) -> None:
    assert judged(command, workspace).rule == letter
