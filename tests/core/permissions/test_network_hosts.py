"""The hosts that an approval of a command includes."""

from __future__ import annotations

import pytest

from callboard.adapters.shell.parser import BashParser
from callboard.core.permissions.effects import CallFacts
from callboard.core.permissions.facts import find_facts
from callboard.core.permissions.judge import parts_of
from callboard.core.permissions.network import describe, hosts_of, requested_hosts
from callboard.core.permissions.values import PathFact, ProposedCall

ANY = ("*",)
GITHUB = ("api.github.com", "github.com", "uploads.github.com")
REMOTES = {"origin": ("https://git.example.org/a/b.git",), "fork": ("git@example.net:a/b.git",)}
CASES: dict[str, tuple[str, ...]] = {
    "npm install": ANY,
    "npm ci && npm test": ANY,
    "cd web && npm install left-pad": ANY,
    "timeout 60 npm install": ANY,
    "npm --prefix web install": ANY,
    "npm test": (),
    "npm run build": (),
    "npm install --registry http://127.0.0.1:4873": ("127.0.0.1:4873",),
    "npm install user/repo": ANY,
    "npm install user/repo --registry https://r.example.org": ("r.example.org", "github.com", "codeload.github.com"),
    "npx cowsay hi": ANY,
    "yarn": ANY,
    "yarn build": (),
    "pip install requests": ANY,
    "python3 -m pip install -r requirements.txt": ANY,
    "./.venv/bin/pip3.11 install x": ANY,
    f"pip install --index-{'url'} https://packages.example.org/simple x": ("packages.example.org",),
    "pip install git+https://github.com/a/b": ANY,
    "pip list": (),
    "uv sync": ANY,
    "cargo build": ANY,
    "cargo fmt": (),
    "curl https://Example.org/a -o out.html": ("example.org",),
    "curl -sSL example.org:8080/a": ("example.org:8080",),
    "curl http://127.0.0.1:8000/": ("127.0.0.1:8000",),
    "curl http://[::1]:8000/": ("[::1]:8000",),
    "curl -X POST https://a.example.org https://b.example.org": ("a.example.org", "b.example.org"),
    "curl https://user:word@example.org/": ("example.org",),
    "curl https://good.example@evil.example/": ("evil.example",),
    "curl $URL": ANY,
    "curl https://$HOST/": ANY,
    'curl -H "$HEADER" https://a.example.org/': ("a.example.org",),
    "curl --config settings": ANY,
    "wget ftp://example.org/f": ANY,
    "git push": ANY,
    "git push origin main": ("git.example.org",),
    "git push origin HEAD:refs/heads/topic": ("git.example.org",),
    "git push -u origin main:main +HEAD:topic": ("git.example.org",),
    "git fetch origin main:refs/remotes/origin/main": ("git.example.org",),
    "git push fork HEAD:main": ANY,
    "git push https://example.com/a.git HEAD:main": ("example.com",),
    "git push example.com:a.git HEAD:main": ANY,
    "git fetch --multiple origin example.com:a": ANY,
    "git fetch fork": ANY,
    "git -c x.y=z push origin": ANY,
    "git clone https://example.com/a.git": ("example.com",),
    "git clone git@example.com:a/b.git": ANY,
    "git status": (),
    "git commit -m 'push https://example.org'": (),
    "ssh host ls": ANY,
    "nc example.org 80": ANY,
    "echo https://example.org": (),
    "make": (),
    "echo x > /dev/tcp/example.org/80": ANY,
    "bash -c 'npm install'": ANY,
    "npm install && curl https://example.org/": ANY,
    "gh pr list": GITHUB,
    "gh pr create --title x --body y -R owner/name": GITHUB,
    "gh api repos/a/b --hostname git.example.org": ANY,
    "gh issue list --repo git.example.org/a/b": ANY,
    "gh issue list --repo=git.example.org/a/b": ANY,
    "gh api $X": ANY,
    "gh run download 1": ANY,
    "gh repo clone https://git.example.org/a/b": (*GITHUB, "git.example.org"),
    "$X npm install": (),
    "$X ssh host": (),
    "$X gh pr list; gh pr view 1": GITHUB,
    "$X npm install; curl https://example.org/": ("example.org",),
    "for i in 1 2; do pip install x; done": ANY,
}


@pytest.mark.parametrize("command", CASES)
def test_a_command_needs_the_hosts_that_its_words_tell(command: str) -> None:
    call = ProposedCall("bash", {"command": command}, "unknown")
    facts = find_facts(
        call, CallFacts(root="/w"), BashParser().parse, lambda found: {one: PathFact("inside") for one in found}
    )
    assert hosts_of(parts_of(call, facts), REMOTES) == CASES[command]


@pytest.mark.parametrize(
    ("value", "hosts"),
    [
        (None, ()),
        ([], ()),
        (["API.example.org", "api.example.org"], ("api.example.org",)),
        (["example.org:8080"], ("example.org:8080",)),
        (["https://example.org"], ANY),
        (["a b"], ANY),
        ([f"h{n}.example.org" for n in range(30)], ANY),
    ],
)
def test_hosts_that_a_call_asks_for_are_plain_names(value: object, hosts: tuple[str, ...]) -> None:
    assert requested_hosts(value) == hosts


def test_the_question_names_every_host() -> None:
    assert "any host" in describe(ANY)
    assert "a.example.org, b.example.org, and no other host" in describe(("a.example.org", "b.example.org"))
    assert describe(()) == ""
