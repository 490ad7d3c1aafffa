"""Hosts that a command needs, as far as its words show: registries, git remotes, URLs. Pure.

An approval of the command includes exactly these hosts. If the words do not show the hosts, the result is `*`: the
machine's network. A host is `name` (ports 80 and 443) or `name:port`, in lower case.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import cast

from callboard.core.permissions.command_table import NETWORK, names
from callboard.core.permissions.effects import Risk, ScriptPart
from callboard.core.permissions.values import HOLE, Arg
from callboard.types.late_pattern import late_pattern

ANY = "*"
HOST = late_pattern(r"(?:\[[0-9a-f:.]+\]|[a-z0-9_](?:[a-z0-9_.-]*[a-z0-9_])?)(?::[0-9]{1,5})?")
MOST_HOSTS = 20
"""Maximum number of hosts of one command. A person cannot review more."""

_URL = late_pattern(r"(?:[a-z]+\+)?([a-z][a-z0-9.-]*)://(?:[^/@\s]*@)?(\[[^\]/]*\]|[^/:?#\s]*)(?::([0-9]+))?", re.I)
_PROXIED = names("http https ws wss")
"""Schemes whose programs use an HTTP proxy."""
_USUAL = names("80 443")
_SSH = late_pattern(r"(?:[\w.-]+@)?[\w.-]+:(?!//|\d+(?:/|$)).+")
_BARE = late_pattern(r"((?:localhost|(?:[a-z0-9-]+\.)+[a-z0-9-]+)(?::[0-9]{1,5})?)(?:[/?#].*)?", re.I)
_FLAGS = late_pattern(r"-[sSLfkIivOJgGq#]+|--(?:silent|location|fail|head|include|insecure|verbose|compressed|quiet)")
"""Options of curl and wget that take no value."""

_GITHUB = "github.com codeload.github.com"
_GH_HOSTS = "api.github.com github.com uploads.github.com"
"""Hosts that the GitHub command line reaches, unless the command or its environment names another instance."""
_GH_OTHER = late_pattern(r"--hostname(?:=.*)?|-h")
_GH_REPOSITORY = late_pattern(r"(?:-R|--repo)(?:=(.*))?")
_GH_ELSEWHERE = names("codespace cs extension extensions ext run attestation at copilot agent-task")
"""Subcommands that reach hosts known only to the service: machines, downloads of logs, programs of others."""
_NPM_WORDS = (
    "install i in ins add ci clean-install update up upgrade audit outdated view info show publish dedupe exec x "
    "create init search install-test it install-ci-test cit dlx fetch ping whoami login logout pack"
)
_PIP_WORDS = "install download wheel index search"
_CARGO_WORDS = (
    "add build b check c test t run r fetch install update generate-lockfile vendor search publish clippy doc"
)
_MAKERS: Mapping[str, str] = MappingProxyType(
    {
        **dict.fromkeys(("npm", "pnpm"), _NPM_WORDS),
        **dict.fromkeys(("npx", "pnpx", "bunx", "corepack", "uvx", "mvn", "mvnw", "gradle", "gradlew"), ""),
        "yarn": f"install add upgrade up dlx create npm info {ANY}",
        "bun": "install i add update x create",
        "deno": "install add cache run test",
        **dict.fromkeys(("pip", "pip3"), _PIP_WORDS),
        "pipx": "install run upgrade upgrade-all inject reinstall",
        "uv": "sync add lock pip run tool build publish",
        "poetry": "install add update lock publish self",
        "pdm": "install add update lock sync publish",
        "pipenv": "install update sync lock",
        "hatch": "run env build publish",
        **dict.fromkeys(("conda", "mamba"), "install create update env search"),
        "cargo": _CARGO_WORDS,
        "go": "get install mod build test run vet generate list work",
        "gem": "install update fetch search push",
        **dict.fromkeys(("bundle", "bundler"), f"install update add lock outdated {ANY}"),
        "composer": "install i update u require create-project outdated",
        "dotnet": "restore build add tool new test run publish",
        "mix": "deps.get deps.update hex.info local.hex archive.install",
    }
)
"""Program -> the subcommands that use the network (empty: all do; `*`: also the program without a subcommand).

The configuration of these programs selects the source of downloads, so the hosts are known only if the command names
its registry.
"""
_OWN_REGISTRY = late_pattern(r"--(?:registry|index-url|default-index|index)(?:=.*)?|-i")
_SHORTHAND = late_pattern(r"(?:github:)?[a-z0-9][\w-]*/[\w.-]+(?:#.*)?", re.I)
_GIT_WORDS = names("clone fetch pull push ls-remote submodule remote lfs archive")
_GIT_VALUES = names("-C -c --git-dir --work-tree --namespace --exec-path --config-env")


def hosts_of(parts: Iterable[ScriptPart], remotes: Mapping[str, Sequence[str]]) -> tuple[str, ...]:
    """Return the hosts that a script needs; empty if no part of it is known to use the network.

    `remotes`: the URLs of each remote of the repository in which the script runs.
    """
    hosts_found = dict[str, None]()
    for part in parts:
        if part.guessed:  # a part that runs only for certain values of unknown words: nobody approved it
            continue
        hosts = [host for view in part.views for host in _of_command(view.words, remotes)]
        if not hosts and any(isinstance(effect, Risk) and effect.letter == "N" for effect in part.effects):
            hosts = [ANY]
        hosts_found.update(dict.fromkeys(hosts))
    return (ANY,) if ANY in hosts_found or len(hosts_found) > MOST_HOSTS else tuple(hosts_found)


def requested_hosts(value: object) -> tuple[str, ...]:
    """Return the hosts that a call requests in its input. A text that is not a host requests any host."""
    items = cast("Sequence[object]", value) if isinstance(value, list | tuple) else ()
    texts = [str(item).strip().lower() for item in items]
    hosts = tuple(dict.fromkeys(text if HOST.fullmatch(text) else ANY for text in texts))
    return (ANY,) if ANY in hosts or len(hosts) > MOST_HOSTS else hosts


def describe(hosts: Sequence[str]) -> str:
    """Return a description of the hosts that an approval of the command permits, for the question; empty if none."""
    if not hosts:
        return ""
    if ANY in hosts:
        return "An approval opens the network: any host, and services of this machine"
    return f"An approval lets it reach {', '.join(hosts)}, and no other host"


def _of_command(arg_words: Sequence[Arg], remotes: Mapping[str, Sequence[str]]) -> Iterator[str]:
    if not arg_words or not arg_words[0].known:
        return
    program = arg_words[0].text.rpartition("/")[2].lower()
    texts = [word.text for word in arg_words[1:]]
    if re.fullmatch(r"python[0-9.]*", program) and texts[:2] == ["-m", "pip"]:
        program = "pip"
        texts = texts[2:]
    if re.fullmatch(r"pip[0-9.]+", program):
        program = "pip"
    if program == "git":
        yield from _of_git(texts, remotes)
    elif program in _MAKERS:
        yield from _of_maker(program, texts)
    elif program == "gh":
        yield from _of_gh(texts)
    elif program in ("curl", "wget", "http", "https", "xh", "aria2c"):
        yield from _of_urls(texts) if any("://" in text for text in texts) else _of_bare(texts)


def _of_maker(program: str, texts: Sequence[str]) -> Iterator[str]:
    subcommands = _MAKERS[program]
    plain = [text for text in texts if not text.startswith("-")]
    used = names(subcommands)
    if used and not (used.intersection(plain[:2]) if plain else ANY in used):  # `npm --prefix web install`
        return
    if any(HOLE in text for text in texts):
        yield ANY
    if not any(_OWN_REGISTRY.fullmatch(text) for text in texts):
        yield ANY
    yield from _of_urls(texts)
    if program in ("npm", "pnpm", "yarn", "npx") and any(_SHORTHAND.fullmatch(text) for text in plain[1:]):
        yield from _GITHUB.split()


def _of_gh(texts: Sequence[str]) -> Iterator[str]:
    """Yield the hosts of GitHub itself; any host if the words name another instance, or may do so."""
    plain = [text for text in texts if not text.startswith("-")]
    repositories = [
        match[1] or following
        for text, following in zip(texts, (*texts[1:], ""), strict=True)
        if (match := _GH_REPOSITORY.fullmatch(text))
    ]
    elsewhere = any(HOLE in text or _GH_OTHER.fullmatch(text) for text in texts)
    if (
        elsewhere
        or _GH_ELSEWHERE.intersection(plain[:1])
        or any(repository.count("/") != 1 for repository in repositories)
    ):
        yield ANY
        return
    yield from _GH_HOSTS.split()
    yield from _of_urls(texts)


def _of_urls(texts: Iterable[str]) -> Iterator[str]:
    for text in texts:
        for match in _URL.finditer(text):
            yield _host(match[1], match[2], match[3] or "")


def _host(scheme: str, name: str, port: str) -> str:
    host = name.lower().rstrip(".") + (f":{port}" if port and port not in _USUAL else "")
    return host if scheme.lower() in _PROXIED and HOST.fullmatch(host) else ANY


def _of_bare(texts: Sequence[str]) -> Iterator[str]:
    """Yield hosts of a program that adds `http://` itself. A possible value of an option is not counted as a host."""
    before = ""
    for text in texts:
        if not text.startswith("-"):
            match = _BARE.fullmatch(text) if not before or _FLAGS.fullmatch(before) else None
            yield match[1].lower() if match else ANY
        before = text if text.startswith("-") else ""


def _of_git(texts: Sequence[str], remotes: Mapping[str, Sequence[str]]) -> Iterator[str]:
    at = 0
    elsewhere = False
    while at < len(texts) and texts[at].startswith("-"):
        elsewhere |= texts[at].partition("=")[0] in _GIT_VALUES
        at += 2 if texts[at] in _GIT_VALUES else 1
    subcommand, arguments = (texts[at], texts[at + 1 :]) if at < len(texts) else ("", ())
    if subcommand not in _GIT_WORDS or not _talks(subcommand, arguments):
        return
    plain = [text for text in arguments if not text.startswith("-")]
    # Words after the repository are refspecs: `git push origin HEAD:main` names no host `HEAD`.
    named_at = next((at for at, text in enumerate(plain) if "://" in text or text in remotes), len(plain))
    addresses = plain if "--multiple" in arguments else plain[: named_at + 1]
    urls = [text for text in plain if "://" in text] + [text for text in addresses if _SSH.fullmatch(text)]
    if any(HOLE in text for text in arguments) or (elsewhere and not urls):
        yield ANY
        return
    named = [url for text in plain for url in remotes.get(text, ())]
    for url in urls or named or [url for urls in remotes.values() for url in urls]:
        if "://" in url:
            yield from _of_urls([url])
        elif _SSH.fullmatch(url):
            yield ANY  # ssh uses no HTTP proxy


def _talks(subcommand: str, arguments: Sequence[str]) -> bool:
    first = next((text for text in arguments if not text.startswith("-")), "")
    if subcommand == "submodule":
        return first in ("update", "add", "")
    if subcommand == "remote":
        return first in ("update", "show", "prune") or (first == "add" and "-f" in arguments)
    if subcommand == "archive":
        return any(text.startswith("--remote") for text in arguments)
    return True


NEEDS_NETWORK = frozenset({*NETWORK, *_MAKERS, "git", "gh"})
"""Programs that may fail because the network is off."""
