"""What a workspace claims, its digest, and how it is shown: pure."""

from __future__ import annotations

import json
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from callboard.core.trust.claims import (
    Claim,
    ClaimKind,
    TrustDecision,
    WorkspaceClaims,
    agent_claims,
    changes_since,
    claude_claims,
    digest_of,
    hook_claims,
    named_files,
    printable,
    server_claims,
    settings_claims,
    skill_claims,
)
from callboard.core.trust.git_config import config_is_quiet, git_claims, git_settings
from callboard.core.trust.yaml_nodes import json_node, node_of, plain

KINDS: tuple[ClaimKind, ...] = ("hook", "rule", "git")
CLAIMS = st.lists(st.builds(Claim, st.text(max_size=4), st.sampled_from(KINDS), st.text(max_size=6)), max_size=5)
HASHES = st.dictionaries(st.text(max_size=4), st.text(max_size=4), max_size=3)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=12,
)


def told(claims: list[Claim]) -> list[tuple[str, str, int]]:
    return [(claim.kind, claim.text, claim.line) for claim in claims]


@given(CLAIMS, HASHES, CLAIMS, HASHES)
def test_two_contents_have_one_digest_only_if_they_are_the_same(
    one: list[Claim], some: dict[str, str], two: list[Claim], others: dict[str, str]
) -> None:
    same = sorted(one) == sorted(two) and some == others
    assert (digest_of(one, some) == digest_of(two, others)) is same
    assert digest_of(reversed(one), dict(reversed(some.items()))) == digest_of(one, some)


def test_a_claim_that_moved_to_another_line_is_the_same() -> None:
    assert digest_of([Claim("a", "rule", "x", 3)], {}) == digest_of([Claim("a", "rule", "x", 9)], {})


def test_what_changed_since_a_content_was_trusted() -> None:
    kept, gone, new = Claim("a", "hook", "kept", 1), Claim("a", "hook", "gone", 2), Claim("b", "rule", "new", 3)
    before = TrustDecision("/w", "d", 0.0, (kept, gone), {"a": "1", "c": "1", "same": "1"})
    now = WorkspaceClaims("/w", (Claim("a", "hook", "kept", 7), new), {"a": "2", "b": "1", "c": "2", "same": "1"})
    changes = changes_since(before, now)
    assert (changes.added, changes.removed, changes.rewritten) == ((new,), (gone,), ("c",))


@given(st.text())
def test_nothing_that_is_shown_is_invisible_or_steers_a_screen(text: str) -> None:
    assert printable(text).isprintable()
    assert printable(printable(text)) == printable(text)


@pytest.mark.parametrize(
    ("text", "seen"),
    [
        ("curl x\x1b[2K\rls", "curl x\\x1b[2K\\rls"),
        ("rm \u202egpj.exe", "rm \\u202egpj.exe"),
        ("a\u200bb\u00a0c\u3164d", "a\\u200bb\\xa0c\\u3164d"),
        ("one\ntwo\ttabs", "one\\ntwo\\ttabs"),
        ("été 日本", "été 日本"),
    ],
)
def test_hostile_names_are_spelled_out(text: str, seen: str) -> None:
    assert printable(text) == seen


@given(JSON)
def test_json_is_read_as_the_library_reads_it(value: object) -> None:
    assert plain(json_node(json.dumps(value, indent=1))) == value
    assert plain(node_of(value, {})) == value


def test_json_knows_its_lines_and_loses_no_doubled_name() -> None:
    members = list(json_node('{\n "a": 1,\n "b": [\n  "x",\n  {"c": "y"}],\n "a": "z"\n}').members or ())
    assert [(name, node.line) for name, node in members] == [("a", 2), ("b", 3), ("a", 6)]
    assert [one.line for one in members[1][1].items or ()] == [4, 5]


def test_hooks_are_told_in_full_with_their_lines() -> None:
    text = json.dumps(
        {
            "PreToolUse": [{"matcher": "Bash", "hooks": [{"type": "command", "command": "./a.sh", "timeout": 3}]}],
            "Stop": [{"hooks": [{"type": "http", "url": "https://x", "headers": {"K": "$V"}}, {"type": "agent"}]}],
            "Odd": "not a list",
        },
        indent=1,
    )
    assert told(hook_claims("f", json_node(text))) == [
        ("hook", 'PreToolUse(Bash): ./a.sh {"timeout": 3}', 8),
        ("url", 'Stop: https://x {"headers": {"K": "$V"}}', 19),
        ("hook", 'Stop: {"type": "agent"}', 25),
        ("hook", "Odd: not a list", 30),
    ]


def test_our_settings_are_told_value_by_value_and_what_tightens_is_none() -> None:
    tree = {
        "model": "m",
        "limits": {"steps": 3},
        "permission": {"allow": ["Bash"], "deny": ["Read(.env)"], "ask": ["Edit"], "mode": "acceptEdits"},
        "hooks": {"Stop": [{"hooks": [{"type": "command", "command": "x"}]}]},
    }
    assert {(claim.kind, claim.text) for claim in settings_claims("f", node_of(tree, {}))} == {
        ("setting", "model = m"),
        ("setting", "limits.steps = 3"),
        ("rule", "allow Bash"),
        ("mode", "acceptEdits"),
        ("hook", "Stop: x"),
    }


def test_settings_written_for_claude_code() -> None:
    tree = {
        "permissions": {
            "allow": ["Bash(npm *)"],
            "deny": ["X"],
            "additionalDirectories": ["../y"],
            "defaultMode": "plan",
        },
        "env": {"A": "b"},
        "apiKeyHelper": "./key.sh",
        "enableAllProjectMcpServers": True,
        "permissionsX": 1,
    }
    assert {(claim.kind, claim.text) for claim in claude_claims("f", node_of(tree, {}))} == {
        ("rule", "allow Bash(npm *)"),
        ("folder", "../y"),
        ("mode", "plan"),
        ("variable", "A=b"),
        ("command", "apiKeyHelper = ./key.sh"),
        ("setting", "enableAllProjectMcpServers = true"),
        ("setting", "permissionsX = 1"),
    }


def test_servers_agents_and_skills() -> None:
    servers = {
        "x": {"command": "npx", "args": ["-y", "e"], "env": {"K": "v"}},
        "y": {"url": "https://a", "headersHelper": "h"},
    }
    assert {(claim.kind, claim.text) for claim in server_claims("f", node_of(servers, {}))} == {
        ("server", "x: npx -y e"),
        ("variable", "x: K=v"),
        ("url", "y: https://a"),
        ("command", "y: headersHelper: h"),
    }
    fields = {
        "name": "a",
        "tools": "Bash",
        "permissionMode": "acceptEdits",
        "mcpServers": [{"z": {"command": "c"}}, "w"],
    }
    claims = agent_claims("f", node_of(fields, {}))
    assert claims[0].text.startswith('a {"tools": "Bash", "permissionMode": "acceptEdits"')
    assert ("server", "z: c") in {(claim.kind, claim.text) for claim in claims}
    body = "text\n!`ls $HOME` and !`date`\n```!\nrm x\n```\n"
    skill = skill_claims(".claude/skills/s/SKILL.md", node_of({"allowed-tools": "Bash(git:*)"}, {}), body, 5)
    assert told(skill) == [
        ("skill", 's {"allowed-tools": "Bash(git:*)"}', 1),
        ("command", "ls $HOME", 6),
        ("command", "date", 6),
        ("command", "rm x", 7),
    ]


@given(JSON)
def test_whatever_stands_in_a_file_the_claims_are_made(value: object) -> None:
    node = node_of(value, {})
    for reader in (settings_claims, claude_claims, hook_claims, server_claims, agent_claims):
        assert all(isinstance(cast("object", claim), Claim) for claim in reader("f", node))


QUIET = '[core]\n\tfilemode = 0\n\tbare = false\n[remote "origin"]\n\turl = https://x\n[alias]\n\tst = x\n'


@pytest.mark.parametrize(
    "text",
    [
        "[core]\n\tfsmonitor = ./evil\n",
        "[core] fsmonitor = ./evil",
        "[CORE]\n\tHooksPath=x",
        '[diff "x"]\n\ttextconv = sh -c x',
        '[filter "lfs"]\n\tclean = x',
        "[alias]\n\tx = !rm -rf /",
        '[alias]\n\tx = "!rm"',
        "[include]\n\tpath = other",
        '[includeIf "gitdir:/"]\n\tpath = other',
        "[credential]\n\thelper = !x",
        "[core]\n\tpager = le\\\nss",
        "[core\n\tbroken",
        "fsmonitor = without a section",
        '[core ""]\n\tfsmonitor = x',
        "[gpg]\n\tprogram = x",
        "[http]\n\tproxy = x",
        "# a comment \\\n[core]\n\tfsmonitor = x",
        "[core]\n\tbare = true ; told \\\n\tfsmonitor = x",
        '[core]\n\teol = "a # b" \\\n\n\tfsmonitor = x',
    ],
)
def test_git_settings_that_may_run_something_are_claims(text: str) -> None:
    assert git_claims("f", git_settings(text))
    if "[alias]" not in text:
        assert not config_is_quiet(text)


def test_git_settings_that_are_known_to_be_harmless_are_none() -> None:
    assert git_claims("f", git_settings(QUIET)) == []


def test_a_git_value_is_read_as_git_reads_it() -> None:
    text = '[alias]\n\tx = "!echo \\"a;b\\"" # told\n; all of it\n[core]\n\tpager = a\\\nb ; c\n\tbare\n'
    assert [(one.name, one.value, one.line) for one in git_settings(text)] == [
        ("alias.x", '!echo "a;b"', 2),
        ("core.pager", "ab", 5),
        ("core.bare", "true", 7),
    ]


@pytest.mark.parametrize(
    ("command", "files"),
    [
        ("./check.sh", ["check.sh"]),
        ("python3 $CLAUDE_PROJECT_DIR/tools/x.py --fast", ["python3", "tools/x.py"]),
        ('"${CLAUDE_PROJECT_DIR}/a b.sh" | tee', ["a b.sh"]),
        ("cd /w/sub && node /w/sub/x.js", ["sub", "sub/x.js"]),
        ("FOO=bin/x.sh;bash<lib.sh", ["bin/x.sh", "lib.sh"]),
        ("cat ../secret ~/x /etc/passwd", ["cat"]),
    ],
)
def test_files_that_a_command_may_name(command: str, files: list[str]) -> None:
    assert [one for one in files if one not in named_files(command, "/w")] == []
    assert not [one for one in named_files(command, "/w") if one.startswith(("/", ".."))]


@pytest.mark.parametrize(
    "command",
    [
        "date >> log/x.txt",
        "PostToolUse(Write): jq -r .tool_name>log/x.txt",
        'date >> "$CLAUDE_PROJECT_DIR/log/x.txt" 2>&1',
        'date &>> "$CLAUDE_PROJECT_DIR"/log/x.txt',
        "date 2>/w/log/x.txt",
        "jq . | tee -a log/x.txt | cat",
        "sh -c 'date >| log/x.txt'",
    ],
)
def test_a_file_that_a_command_only_writes_is_none_of_its_files(command: str) -> None:
    assert not [one for one in named_files(command, "/w") if "x.txt" in one]


@pytest.mark.parametrize(
    "command",
    [
        "curl -s URL > x.sh && sh x.sh",
        "> log.txt ./x.sh",
        "date >(sh x.sh)",
        'check ">" x.sh',
        "node -e 'run(a => x.sh)'",
        "./tee x.sh",
        "tee < x.sh",
        "sh 2>&1 x.sh",
    ],
)
def test_a_file_that_a_command_may_run_beside_what_it_writes_counts(command: str) -> None:
    assert "x.sh" in named_files(command, "/w")
