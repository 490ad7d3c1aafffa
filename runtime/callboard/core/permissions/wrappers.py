"""Programs that run another program: their own effects, and the inner program; and literal scripts that a shell runs.

Literal scripts are `sh -c TEXT`, a heredoc, a here-string, and `echo TEXT | sh`.

A wrapper whose options are not fully known still reveals its program for denials, but asks.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterable, Mapping, Sequence

from callboard.core.permissions.command_table import HARMLESS_ASSIGNMENTS, names
from callboard.core.permissions.effects import Effect, Risk
from callboard.core.permissions.find import printed_paths
from callboard.core.permissions.git_options import git_options
from callboard.core.permissions.hard_deny import name_of, walk
from callboard.core.permissions.option_parser import names_long
from callboard.core.permissions.values import HOLE, Arg, Node, Redirect, Script, Simple
from callboard.core.permissions.word_expansion import expand, literal
from callboard.types.late_pattern import late_pattern
from callboard.types.lazy_dataclass import dataclass


@dataclass(frozen=True, slots=True)
class UnwrappedCommand:
    """Content of a wrapper: the inner words (empty: it runs nothing), its own effects, folders that it changes to."""

    inner: tuple[Arg, ...]
    effects: tuple[Effect, ...] = ()
    folder: Arg | None = None
    sure: bool = True
    """False if the start of the inner program is a guess."""


@dataclass(frozen=True, slots=True)
class _Wrapper:
    flags: str = ""
    values: str = ""
    long_flags: tuple[str, ...] = ()
    long_values: tuple[str, ...] = ()
    skip: int = 0
    """Number of operands before the program."""


TRANSPARENT_FOR_ALLOW = names("timeout time nice nohup stdbuf")

OTHERS = names(
    "ionice chrt taskset watch flock parallel ltrace strace chroot unshare nsenter script setarch linux32 linux64 "
    "systemd-run faketime fakeroot eatmydata proot cpulimit prlimit unbuffer rlwrap dbus-run-session start-stop-daemon "
    "at batch setpriv capsh sg newgrp bwrap firejail numactl catchsegv valgrind torsocks proxychains proxychains4 "
    "torify gtimeout gnice gnohup gstdbuf genv gxargs perf hyperfine choom tmux screen xvfb-run chronic ifne pee "
    "dumb-init tini uclampset trickle cgexec daemonize dbus-launch ssh-agent sshpass aa-exec runcon fakechroot schroot "
    "caffeinate sem rr entr watchexec nodemon sandbox-exec tsocks lldb gdb"
)
"""Programs that run others in ways that are not parsed here. They ask, and the programs that they would run are judged
for denials."""

_RUNNERS: Mapping[str, frozenset[str]] = {
    **dict.fromkeys(
        ("uv", "poetry", "pdm", "pipenv", "rye", "hatch", "conda", "mamba", "devbox", "pixi"), names("run")
    ),
    **dict.fromkeys(names("direnv mise asdf npm pnpm yarn bundle rbenv pyenv"), names("exec x")),
    **dict.fromkeys(names("npx bunx pnpx uvx"), names("")),
    **dict.fromkeys(names("fd fdfind"), names("-x --exec -X --exec-batch")),
    "pipx": names("run"),
}
"""Tools of projects that run other programs, with the subcommands that do so; without one, every call does."""

_GIT_RUNNERS: Mapping[str, frozenset[str]] = {
    "bisect": names("run"),
    "rebase": names("-x --exec"),
    "submodule": names("foreach"),
}
"""Commands of git that run the program in their words, with the word that comes before it."""

_WRAPPERS: Mapping[str, _Wrapper] = {
    "nice": _Wrapper(values="n", long_values=("adjustment",)),
    "nohup": _Wrapper(),
    "timeout": _Wrapper("fpv", "ks", ("preserve-status", "foreground", "verbose"), ("kill-after", "signal"), skip=1),
    "time": _Wrapper("pv", "", ("portability", "verbose"), ()),
    "stdbuf": _Wrapper(values="ioe", long_values=("input", "output", "error")),
    "setsid": _Wrapper("cfw", "", ("ctty", "fork", "wait"), ()),
    "command": _Wrapper("p"),
    "builtin": _Wrapper(),
    "exec": _Wrapper("cl", "a"),
    "busybox": _Wrapper(),
    "toybox": _Wrapper(),
}
_XARGS = _Wrapper(
    "0rtpxo",
    "ILnPsdEa",
    ("null", "no-run-if-empty", "verbose", "interactive", "exit", "open-tty"),
    ("max-lines", "max-args", "max-procs", "max-chars", "delimiter", "arg-file"),
)


def is_wrapper(name: str) -> bool:
    """Return True if the program is one of the known wrappers."""
    return name in _WRAPPERS or name in ("env", "xargs")


def starts_others(name: str, args: Sequence[Arg]) -> bool:
    """Return True if a program that is not a wrapper runs the program that some of its words name."""
    if name == "git":
        return _git_runs(args)
    subcommands = _RUNNERS.get(name)
    if subcommands is None:
        return name in OTHERS
    return not subcommands or any(arg.text in subcommands for arg in args)


def _git_runs(args: Sequence[Arg]) -> bool:
    arguments = list(args)
    git_options(arguments)
    texts = [arg.text for arg in arguments]
    return bool(texts) and not _GIT_RUNNERS.get(texts[0], frozenset[str]()).isdisjoint(texts[1:])


def peel(name: str, args: Sequence[Arg], stdin: str | None) -> UnwrappedCommand:
    """Remove a wrapper. `stdin` is the text that it reads, if known."""
    if name == "env":
        return _env(list(args))
    if name == "xargs":
        return _xargs(args, stdin)
    if name == "command" and _looks_up(args):
        return UnwrappedCommand(())
    at, sure = _skip_options(args, _WRAPPERS[name])
    inner = tuple(args[at + _WRAPPERS[name].skip :])
    sure &= _fixed(args[: len(args) - len(inner)])
    return UnwrappedCommand(inner, () if sure else (_unclear(name),), sure=sure)


def _looks_up(args: Sequence[Arg]) -> bool:
    """Return True if `command` has `-v` before the program's name, and so only prints the program's path."""
    for arg in args:
        if not re.fullmatch(r"-[pvV]+", arg.text):
            return False
        if arg.text.strip("-p"):
            return all(word.known for word in args)
    return False


def _fixed(args: Sequence[Arg]) -> bool:
    """Return True if each of these words stays one word.

    An unknown word or a glob can become several, including the program.
    """
    return all(arg.known and not arg.glob for arg in args)


def _unclear(name: str) -> Risk:
    return Risk("L", f"an option of `{name}` is not known, so what it runs is not sure", "bypass")


def _skip_options(args: Sequence[Arg], wrapper: _Wrapper) -> tuple[int, bool]:
    """Return the index of the first operand, and True if every option before it was known."""
    at = 0
    while at < len(args):
        text = args[at].text
        if text == "--":
            return at + 1, True
        if not args[at].known:
            return at, False
        if not text.startswith("-") or text == "-":
            return at, True
        size = _option_size(text, wrapper)
        if size == 0:
            return at, False
        at += size
    return at, True


def _option_size(text: str, wrapper: _Wrapper) -> int:
    """Return the number of words that the option takes (1 or 2), or 0 if it is unknown."""
    if text.startswith("--"):
        word, equals, _ = text[2:].partition("=")
        if any(name.startswith(word) for name in wrapper.long_flags) and not equals and len(word) > 1:
            return 1
        if any(name.startswith(word) for name in wrapper.long_values) and len(word) > 1:
            return 1 if equals else 2
        return 0
    if wrapper.values == "n" and re.fullmatch(r"--?\d+", text):
        return 1  # nice -10
    for i, letter in enumerate(text[1:], start=1):
        if letter in wrapper.values:
            return 1 if i < len(text) - 1 else 2
        if letter not in wrapper.flags:
            return 0
    return 1


def _xargs(args: Sequence[Arg], stdin: str | None) -> UnwrappedCommand:
    effects: list[Effect] = [Risk("X", "`xargs` runs a program with words that it reads")]
    is_plain = not any(re.match(r"-(?:[0rtpxo]*I|i|-replace)", arg.text) for arg in args)
    at, sure = _skip_options(args, _XARGS)
    if not sure:
        effects.append(_unclear("xargs"))
    program = list(args[at:]) or [Arg("echo")]
    if any(re.match(r"-[0rtpxo]*a|--arg", arg.text) for arg in args[:at]):
        effects.append(Risk("O", "`xargs` reads its words from a file"))
    if not is_plain:
        placeholder = _placeholder([arg.text for arg in args[:at]])
        filler = stdin.strip() if stdin is not None else HOLE
        return UnwrappedCommand(
            tuple(_replaced(arg, placeholder, filler) for arg in program), tuple(effects), sure=sure
        )
    if stdin is not None and not re.search(r"[\"'\\]", stdin):
        return UnwrappedCommand((*program, *(Arg(word) for word in stdin.split())), tuple(effects), sure=sure)
    return UnwrappedCommand((*program, Arg(HOLE)), tuple(effects), sure=sure)


def _placeholder(options: Sequence[str]) -> str:
    """Return the text that `-I` replaces: the next word, the attached text, or `{}`."""
    for i, text in enumerate(options):
        if re.fullmatch(r"-[0rtpxo]*I", text):
            return options[i + 1] if i + 1 < len(options) else "{}"
        if match := re.fullmatch(r"-[0rtpxo]*I(.+)|-i(.+)|--replace=(.+)", text):
            return match[1] or match[2] or match[3]
    return "{}"


def _replaced(arg: Arg, placeholder: str, filler: str) -> Arg:
    return Arg(arg.text.replace(placeholder, filler)) if placeholder in arg.text else arg


def harmless_assignment(name: str) -> bool:
    """Return True if setting this variable leaves every decision unchanged (letter V)."""
    return name in HARMLESS_ASSIGNMENTS or re.fullmatch(r"LC_[A-Z]+", name) is not None


def _env(args: list[Arg]) -> UnwrappedCommand:
    effects: list[Effect] = []
    folder: Arg | None = None
    sure = True
    while args:
        text = args[0].text
        if not _fixed(args[: 2 if text in ("-u", "--unset", "-C", "--chdir") else 1]):
            return UnwrappedCommand(tuple(args), (*effects, _unclear("env")), folder, sure=False)
        assignment = re.match(r"(?!-)([^=]*)=", text)  # env takes any name
        if assignment and not harmless_assignment(assignment[1]):
            effects.append(Risk("V", f"it sets the variable {assignment[1]}", "bypass"))
        elif text in ("-u", "--unset", "-C", "--chdir") and len(args) > 1:
            folder = args[1] if text in ("-C", "--chdir") else folder
            args.pop(0)
        elif text.startswith(("--chdir=", "-C")):
            folder = Arg(text.removeprefix("--chdir=").removeprefix("-C"))
        elif text.startswith("-S") or (text.startswith("--") and names_long(text, ("split-string",))):
            args = [args[0], *_split(text, args[1:])]
            effects.append(_unclear("env"))
            sure = False
        elif not assignment and text not in ("-i", "-", "-0", "-v", "--", "--null", "--ignore-environment"):
            if text.startswith("-") and not text.startswith(("--unset=", "-u")):
                return UnwrappedCommand(tuple(args[1:]), (*effects, _unclear("env")), folder, sure=False)
            if not text.startswith("-"):
                return UnwrappedCommand(tuple(args), tuple(effects), folder, sure=sure)
        args.pop(0)
    return UnwrappedCommand((), (*effects, Risk("O", "`env` shows the environment")), folder, sure=sure)


def _split(option: str, following: Sequence[Arg]) -> tuple[Arg, ...]:
    attached = option.partition("=")[2] if option.startswith("--") else option.removeprefix("-S")
    text, following = (attached, following) if attached else (following[0].text if following else "", following[1:])
    return (*(Arg(word.strip("\"'")) for word in text.split()), *following)


_BASH_LIKE = names("sh bash dash ash")
_DESCRIPTOR = late_pattern(r"/dev/stdin()|/dev/fd/(\d+)|/proc/[^/]+/fd/(\d+)")
_NOT_BASH = late_pattern(r"\[\[\s|\$'")
"""Pattern of script text that other shells read differently: `[[ a || b ]]`, and `$'...'` with an escaped quote, end
elsewhere for them."""
_NO_INPUT = names("ls pwd echo printf cd true false test [ date whoami id uname hostname which type basename dirname :")
_SILENT = frozenset((":", "true", "false", "cd", "test", "[", "sleep", "set", "exit", "return"))
_HARMLESS_O = names("pipefail errexit nounset noglob noexec xtrace")
_HARMLESS_LONG = names("--norc --noprofile --posix --restricted")


@dataclass(frozen=True, slots=True)
class ShellScript:
    """The literal script of a shell, if any, and effects beyond it."""

    script: str | None
    effects: tuple[Risk, ...] = ()
    from_input: bool = False
    """True if the shell reads the script while its commands run, and they read from the same input."""


def script_of_shell(shell: str, args: Sequence[Arg], stdin: str | None) -> ShellScript:
    """Return the script that the shell runs. A script that is not literal, or not in bash's grammar, asks."""
    unknown = Risk("L", f"what `{shell}` runs is only known when it runs", "person")
    foreign = () if shell in _BASH_LIKE else (Risk("X", f"`{shell}` has its own grammar"),)
    whole = len(args)
    args = args[: next((i for i, arg in enumerate(args) if not arg.known), whole)]
    has_script, at, odd = _shell_options([arg.text for arg in args])
    effects = [*foreign, *(Risk("X", f"`{shell} {text}` may run more than its script") for text in odd)]
    if not (has_script and at < len(args)) and len(args) < whole:
        return ShellScript(None, (unknown,))
    script = args[at].text if has_script and at < len(args) else stdin or ""
    if shell != "bash" and _NOT_BASH.search(script):
        effects.append(Risk("L", f"`{shell}` may read this script in another way"))
    if has_script:
        return ShellScript(args[at].text, tuple(effects)) if at < len(args) else ShellScript(None, tuple(effects))
    if at < len(args) and "s" not in "".join(arg.text for arg in args[:at] if arg.text[:1] == "-"):
        source = descriptor(args[at:])
        effects.append(Risk("X", f"`{shell}` runs a script file"))
        if source != "0":
            return ShellScript(None, tuple(effects) if source is None else (*effects, unknown))
    if stdin is None:
        return ShellScript(None, (*effects, reads_unknown(shell)))
    if "\\" in stdin:  # shells treat escapes of `echo` differently: deny if one reading is bad, never allow
        effects.append(Risk("X", f"what `{shell}` reads holds escapes"))
    return ShellScript(stdin, tuple(effects), from_input=True)


def reads_unknown(shell: str) -> Risk:
    """Return the effect of a shell that runs an input that is not known."""
    return Risk("X", f"`{shell}` runs what it reads")


def descriptor(args: Sequence[Arg]) -> str | None:
    """Return the number of the descriptor that the first operand names (`/dev/stdin`, a process substitution).

    None if it names a file; `?` if the operand is the output of a command.
    """
    file = next((arg for arg in args if arg.text != "--"), Arg(""))
    match = _DESCRIPTOR.fullmatch(posixpath.normpath(f"/{file.text.lstrip('/')}")) if file.text[:1] == "/" else None
    return (match[match.lastindex or 0] or "0") if match else "?" if file.output_only else None


def _shell_options(texts: Sequence[str]) -> tuple[bool, int, list[str]]:
    """Return True if `-c` gives a script, the index of the first operand, and the options that may do more."""
    has_script = False
    at = 0
    odd = list[str]()
    while at < len(texts) and re.match(r"[-+].|-$", texts[at]):
        text = texts[at]
        at += 1
        if text in ("-", "--"):
            break
        if text.startswith("--"):
            odd += [] if text in _HARMLESS_LONG else [text]
            continue
        has_script |= text[0] == "-" and "c" in text
        at += sum(text.count(letter) for letter in "oO")
        options = texts[at - text.count("o") - text.count("O") : at]
        odd += [text] if set(text[1:]) - set("ceuxvnsfopabhmB") or not set(options) <= _HARMLESS_O else []
    return has_script, at, odd


def stdin_of(redirects: Sequence[Redirect], home: str, piped: str | None) -> str | None:
    """Return the text that a command reads, if known: the last redirect of descriptor 0 counts."""
    for redirect in redirects:
        if redirect.op in ("<<", "<<<") and redirect.descriptor in ("", "0"):
            body = literal(redirect.target, home)
            piped = body.text if body.known else None
        elif redirect.descriptor == "0" or (redirect.op.startswith("<") and redirect.descriptor == ""):
            piped = None
    return piped


def text_of(node: Node, home: str, piped: str | None) -> str | None:
    """Return the output of a pipe stage, if it is literal. `piped`: the stage's input."""
    if not isinstance(node, Simple):
        return None
    args = [arg for word in node.words for arg in expand(word, home)]
    if not args or not all(arg.known and not arg.glob for arg in args) or any(r.op[0] in ">&" for r in node.redirects):
        return None
    name = args[0].text
    texts = [arg.text for arg in args[1:]]
    if (name == "cat" and texts in ([], ["-"])) or name == "tee":
        return stdin_of(node.redirects, home, piped)
    if name == "echo":
        return _echo(texts)
    if name == "printf":
        return _printf(texts[1:] if texts[:1] == ["--"] else texts)
    return None


def prints_nothing(args: Sequence[Arg], redirects: Sequence[Redirect]) -> bool:
    """Return True if a command is known to print nothing, so that redirecting its output empties a file."""
    if not args or args[0].text in _SILENT:
        return True
    texts = [arg.text for arg in args]
    if texts in (["echo", "-n"], ["echo", "-n", ""], ["printf", ""]):
        return True
    nothing = any(from_nothing(redirect) for redirect in redirects)
    return texts[0] == "cat" and (set(texts[1:]) == {"/dev/null"} or (len(texts) == 1 and nothing))


def from_nothing(redirect: Redirect) -> bool:
    """Return True if a command reads `/dev/null` with this redirect."""
    return redirect.op == "<" and name_of(redirect.target) == "/dev/null"


def named_by(node: Node, home: str) -> tuple[Arg, ...]:
    """Return folders whose contents a pipe stage lists: the paths passed to `xargs` are beneath them."""
    if not isinstance(node, Simple):
        return ()
    args = [arg for word in node.words for arg in expand(word, home)]
    return printed_paths(args[1:]) if args and args[0].text == "find" else ()


def shared_input(nodes: Iterable[Node]) -> bool:
    """Return True if more than one of these commands could read a part of the same input."""
    return sum(isinstance(node, Simple) for node in walk(nodes)) > 1


def reads_itself(script: Script) -> bool:
    """Return True if a script that a shell reads from its input could lose lines to its own commands."""
    started = [node for node in walk(script.nodes) if isinstance(node, Simple) and node.words]
    names_ = [name_of(node.words[0]) for node in started]
    return len(names_) > 1 and not all(name in _NO_INPUT for name in names_)


def _echo(texts: list[str]) -> str | None:
    while texts and re.fullmatch(r"-[neE]+", texts[0]):
        texts.pop(0)
    return " ".join(texts) + "\n"


def _printf(texts: list[str]) -> str | None:
    if not texts:
        return None
    form = texts[0].replace("\\n", "\n").replace("\\t", "\t")
    if "\\" in form:
        return None
    if "%" not in form:
        return form
    if form.count("%") == form.count("%s") == 1:
        return "".join(form.replace("%s", text) for text in texts[1:])
    return None
