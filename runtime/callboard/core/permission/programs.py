"""What known programs do with their words. `effects_of` knows every program of the tables; all others are unknown.

Programs that carry a small language of their own (sed, awk, find) are read strictly: what is not recognised as harmless
asks.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence

from callboard.core.permission import commands as table
from callboard.core.permission.effects import Does, Effect, delete, read, write
from callboard.core.permission.never import never
from callboard.core.permission.options import Command, has_option, operands, reader_effects, value_paths
from callboard.core.permission.words import Arg

STANDARD_FOLDERS = ("/bin/", "/sbin/", "/usr/bin/", "/usr/sbin/", "/usr/local/bin/")

_AWK_UNSAFE = re.compile(r"system|getline|ENVIRON|ARG|PROCINFO|[|>@]")
_JQ_UNSAFE = re.compile(r"\benv\b|\$ENV|\$__prog|\binclude\b|\bimport\b|input_filename|\bgetpath_env\b")
_SED_ADDRESS = r"(?:\d+|\$|\d+~\d+|/(?:\[\^?\]?[^\]/\n]*\]|[^/\\\n\[]|\\.)*/I?|\+\d+)"
_SED_SUBSTITUTE = (
    r"s(?P<d>[^\w\s\\\[])"
    r"(?:\[\^?\]?(?:(?!(?P=d))[^\]\n])*\]|(?!(?P=d))[^\\\n\[]|\\.)*(?P=d)"  # no delimiter inside brackets: seds differ
    r"(?:(?!(?P=d))[^\\\n]|\\.)*(?P=d)[gpiIM0-9]*"
)
_SED_ONE = re.compile(
    rf"\s*(?:{_SED_ADDRESS}(?:,{_SED_ADDRESS})?)?\s*!?\s*(?:[pdqQ=nNDPhHgGxl]|{_SED_SUBSTITUTE})\s*(?:;|\n|$)"
)


def effects_of(command: Command) -> Iterator[Effect]:
    """Yield what the command does. A command that yields nothing prints fixed text or does nothing."""
    refused = never(command)
    if refused:
        yield refused
    folder, _, base = command.name.rpartition("/")
    if folder and f"{folder}/" not in STANDARD_FOLDERS:
        yield Does("X", f"`{command.name}` is a program given by its path")
        return
    plain = Command(base, command.args)
    if _asks_version(plain):
        return
    special = _SPECIAL.get(base)
    if special is not None:
        yield from special(plain)
    elif base in table.READERS:
        yield from reader_effects(plain, table.READERS[base])
    elif base in table.TEXT_ONLY:
        yield from _text_only(plain)
    elif base in table.FIXED:
        yield from _fixed(plain)
    else:
        yield from _by_group(plain)


def _asks_version(command: Command) -> bool:
    texts = [arg.text for arg in command.args]
    if command.name in ("go", "helm", "terraform", "docker") and texts == ["version"]:
        return True
    if command.name not in table.VERSIONED or len(texts) != 1:
        return False
    short = {"node": "-v", "npm": "-v", "python": "-V", "python3": "-V", "java": "-version", "ruby": "-v", "pip": "-V"}
    return texts[0] == "--version" or texts[0] == short.get(command.name)


def _text_only(command: Command) -> Iterator[Effect]:
    for index, arg in enumerate(command.args):
        if not arg.known and not (arg.output_only and command.name in ("echo", "printf") and _late(command, index)):
            yield Does("O", f"`{command.name}` would show or use a variable's value")
        elif arg.glob or "~" in arg.text[:1]:
            yield read(arg)
    form = command.args[0].text if command.name == "printf" and command.args else ""
    if form.startswith("-v") or re.search(r"%[^a-zA-Z%]*n", form):
        yield Does("V", "`printf` with `-v` or `%n` sets a variable")


def _late(command: Command, index: int) -> bool:
    return command.name == "echo" or (index > 0 and command.args[0].known)


def _fixed(command: Command) -> Iterator[Effect]:
    texts = [arg.text for arg in command.args]
    if command.name == "date":
        if has_option(command.args, "s", ("set",)) or any(t[:1].isdigit() and len(t) >= 8 for t in texts):
            yield Does("O", "`date` would set the clock")
        if has_option(command.args, "fr", ("file", "reference")):
            yield from (read(arg) for arg in operands(command.args))
            yield from value_paths(command.args)
    elif command.name == "hostname" and operands(command.args):
        yield Does("O", "`hostname` would set the host's name")
    if not all(arg.known for arg in command.args):
        yield Does("L", f"a word of `{command.name}` is only known when it runs")


def _by_group(command: Command) -> Iterator[Effect]:
    name, shown = command.name, f"`{command.name}`"
    if name in table.NAMES_ONLY:
        if not all(arg.known for arg in command.args):
            yield Does("L", f"a word of {shown} is only known when it runs")
    elif name in table.VARIABLES or name in table.ENVIRONMENT:
        yield from _variables(command)
    elif name in table.NETWORK:
        yield Does("N", f"{shown} uses the network")
        yield from (read(arg) for arg in operands(command.args) if arg.known and arg.text.startswith(("/", "~", ".")))
    elif name in table.PROCESSES:
        yield Does("O", f"{shown} touches other processes")
    elif name in table.METADATA:
        yield from _metadata(command)
    elif name in table.MAKERS_OF_SPECIAL or name in table.ARCHIVES:
        yield Does("E", f"{shown} makes files, links or permissions of its own choosing")
        yield from (write(arg, "rule") for arg in operands(command.args))
    elif name in table.REPLACERS:
        yield Does("D", f"{shown} replaces and deletes files")
        yield from (write(arg, "rule") for arg in operands(command.args))
    else:
        yield Does("X", f"{shown} is not a program that is known to only read")
        yield from (read(arg) for arg in operands(command.args) if arg.known and "/" in arg.text)


def _variables(command: Command) -> Iterator[Effect]:
    texts = [arg.text for arg in command.args]
    if command.name == "set" and texts and all(re.fullmatch(r"[-+][euxo]+|pipefail|errexit|nounset", t) for t in texts):
        return
    if command.name in table.ENVIRONMENT and (not texts or texts[0] == "-p" or command.name == "printenv"):
        yield Does("O", f"`{command.name}` shows the environment")
    else:
        yield Does("V", f"`{command.name}` changes variables or settings of the shell")


def _metadata(command: Command) -> Iterator[Effect]:
    yield Does("E", f"`{command.name}` changes permissions or ownership")
    words = operands(command.args)
    modes = [arg.text.lstrip("0").rstrip(",") for arg in words[:1]]
    if command.name == "chmod" and any(
        re.fullmatch(r"[0-7]?777|[aogu]*[+=](?:rwx|rxw|wrx|wxr|xrw|xwr)", m) for m in modes
    ):
        yield Does("F", "`chmod 777` opens a file to everyone", "person")
    yield from (write(arg, "rule") for arg in words[1:])


def _remove(command: Command) -> Iterator[Effect]:
    yield Does("D", f"`{command.name}` deletes", "person")
    yield from (delete(arg, "person") for arg in operands(command.args))


def _empty(command: Command) -> Iterator[Effect]:
    yield Does("D", f"`{command.name}` empties or destroys files")
    yield from (delete(arg) for arg in operands(command.args))


def _make(command: Command) -> Iterator[Effect]:
    if not operands(command.args):
        yield Does("X", f"`{command.name}` without operands")
    if command.name == "mkdir" and has_option(command.args, "m", ("mode",)):
        yield Does("E", "`mkdir -m` sets permissions")
    yield from (write(arg) for arg in operands(command.args))
    yield from value_paths(command.args)


def _copy(command: Command) -> Iterator[Effect]:
    words = operands(command.args)
    target = [arg for arg in command.args if arg.text.startswith(("-t", "--t"))]
    if target or has_option(command.args, "lsbS", ("link", "symbolic-link", "suffix", "backup")):
        yield Does("E", f"`{command.name}` with an option that changes what it writes")
        yield from (write(arg, "rule") for arg in words)
        yield from (
            write(Arg(arg.text[2:].partition("=")[2] or arg.text[2:]), "rule") for arg in target if arg.text[2:]
        )
        return
    if has_option(command.args, "", ("preserve", "archive")) or has_option(command.args, "pa"):
        yield Does("E", f"`{command.name}` keeps permission bits or special files")
    for arg in words[:-1]:
        yield (
            delete(arg, "mode")
            if command.name == "mv"
            else read(arg, tree=has_option(command.args, "rRa", ("recursive",)))
        )
    yield from (write(arg) for arg in words[-1:])
    yield from _into_folder(words)
    if any(arg.text == "/dev/null" for arg in words[:-1]):
        yield Does("D", "it empties the target")


def _into_folder(words: Sequence[Arg]) -> Iterator[Effect]:
    """What is written when the last operand is a folder: the sources' names in it."""
    if not words or not words[-1].known or words[-1].text.startswith("/dev/"):
        return
    for source in words[:-1]:
        base = source.text.rstrip("/").rpartition("/")[2]
        if source.known and not source.glob and not words[-1].glob and base not in ("", ".", ".."):
            yield write(Arg(f"{words[-1].text}/{base}"))


def _tee(command: Command) -> Iterator[Effect]:
    yield from (write(arg) for arg in operands(command.args))


def _dd(command: Command) -> Iterator[Effect]:
    yield Does("E", "`dd` copies raw data")
    for arg in command.args:
        key, _, value = arg.text.partition("=")
        if key == "of":
            yield write(Arg(value), "rule")
        elif key == "if":
            yield read(Arg(value))


def _sed(command: Command) -> Iterator[Effect]:
    scripts, paths, in_place = list[str](), list[Arg](), False
    pending = ended = False
    for arg in command.args:
        text = arg.text
        if not arg.known:
            yield Does("L", "a word of `sed` is only known when it runs")
            return
        if pending:
            scripts.append(text)
            pending = False
        elif text == "--" and not ended:
            ended = True
        elif text.startswith("-") and len(text) > 1 and not ended:
            cluster = re.fullmatch(
                r"-([nErszu]*)(e|i.*)?|--(quiet|silent|posix|regexp-extended|in-place(?:=.*)?)", text
            )
            if cluster is None:
                yield Does("X", f"`sed {text}` is not an option that is known to be harmless")
                return
            in_place |= (cluster[2] or "").startswith("i") or (cluster[3] or "").startswith("in-place")
            pending = cluster[2] == "e"
        else:
            paths.append(arg)
    if not scripts and paths:
        scripts.append(paths.pop(0).text)
    if not all(_sed_is_safe(script) for script in scripts):
        yield Does("X", "this `sed` script may run commands or write files")
    for path in paths:
        yield write(path) if in_place else read(path)


def _sed_is_safe(script: str) -> bool:
    """Whether the script is made of printing, deleting of lines and substitutions alone."""
    at = 0
    while at < len(script):
        match = _SED_ONE.match(script, at)
        if match is None or match.end() == at:
            return False
        at = match.end()
    return bool(script)


def _awk(command: Command) -> Iterator[Effect]:
    words = list(command.args)
    if not all(arg.known for arg in words):
        yield Does("L", "a word of `awk` is only known when it runs")
        return
    while words and words[0].text.startswith("-"):
        option = words.pop(0).text
        if re.fullmatch(r"-F.+|-v\w+=.*", option, re.DOTALL):
            continue
        if option not in ("-F", "-v") or not words:
            yield Does("X", f"`awk {option}` is not an option that is known to be harmless")
            return
        words.pop(0)
    if words and _AWK_UNSAFE.search(words.pop(0).text):
        yield Does("X", "this `awk` program may run commands, write files or show the environment")
    yield from (read(arg) for arg in words)


def _jq(command: Command) -> Iterator[Effect]:
    yield from reader_effects(command, table.READERS["jq"])
    if any(_JQ_UNSAFE.search(arg.text) for arg in command.args):
        yield Does("O", "this `jq` program may show the environment or load other programs")


def _tar(command: Command) -> Iterator[Effect]:
    texts = [arg.text for arg in command.args]
    if len(texts) == 2 and re.fullmatch(r"-?t[vzjJ]*f|-?tf", texts[0]) and not command.args[1].glob:
        yield read(command.args[1])
        return
    yield Does("E", "`tar` writes files or runs programs by its options")
    yield from (write(arg, "rule") for arg in operands(command.args) if arg.known and "/" in arg.text)


def _unzip(command: Command) -> Iterator[Effect]:
    if command.args and command.args[0].text in ("-l", "-v", "-Z", "-t"):
        yield from (read(arg) for arg in operands(command.args))
        return
    yield Does("E", "`unzip` writes files that the archive names")


def _test(command: Command) -> Iterator[Effect]:
    texts = [arg.text for arg in command.args]
    if "-v" in texts or "-R" in texts or any("$(" in text or "`" in text for text in texts):
        yield Does("X", "this test evaluates the subscript of a variable")
    yield from reader_effects(command, table.Reader())


def _cd(command: Command) -> Iterator[Effect]:
    for arg in operands(command.args):
        if arg.text != "-":
            yield read(arg)
    if not operands(command.args) and command.name != "popd":
        yield Does("O", f"`{command.name}` alone leaves the workspace")


def _disk_lister(command: Command) -> Iterator[Effect]:
    yield Does("O", f"`{command.name}` reads disks")


_SPECIAL: Mapping[str, Callable[[Command], Iterator[Effect]]] = (
    dict.fromkeys(("rm", "rmdir", "unlink"), _remove)
    | dict.fromkeys(("truncate", "shred", "srm", "wipe"), _empty)
    | dict.fromkeys(("mkdir", "touch"), _make)
    | dict.fromkeys(("cp", "mv"), _copy)
    | dict.fromkeys(("awk", "gawk", "mawk", "nawk"), _awk)
    | dict.fromkeys(("cd", "pushd", "popd"), _cd)
    | dict.fromkeys(table.LISTERS_OF_DISKS, _disk_lister)
    | {"[": _test, "test": _test}
    | {"tee": _tee, "dd": _dd, "sed": _sed, "jq": _jq, "tar": _tar, "unzip": _unzip}
)
