"""What known programs do with their words. `effects_of` knows every program of the tables; all others are unknown.

Programs that carry a small language of their own (sed, awk, find) are read strictly: what is not recognised as harmless
asks.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence

from callboard.core.permission import commands as table
from callboard.core.permission.effects import Does, Effect, delete, read, write
from callboard.core.permission.languages import awk, jq, sed
from callboard.core.permission.never import never
from callboard.core.permission.options import (
    Command,
    end_of_options,
    has_option,
    names_long,
    operands,
    reader_effects,
    value_paths,
)
from callboard.core.permission.words import Arg

STANDARD_FOLDERS = ("/bin/", "/sbin/", "/usr/bin/", "/usr/sbin/", "/usr/local/bin/")


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
    if texts[0] == "--help":
        return command.name != "pytest"  # it loads the project's own plug-ins
    return texts[0] == "--version" or texts[0] == short.get(command.name)


def _text_only(command: Command) -> Iterator[Effect]:
    for index, arg in enumerate(command.args):
        if not arg.known and not (arg.output_only and command.name in ("echo", "printf") and _late(command, index)):
            yield Does("O", f"`{command.name}` would show or use a variable's value")
        elif arg.glob or "~" in arg.text[:1]:
            yield read(arg)
    form = command.args[0].text if command.name == "printf" and command.args else ""
    if form and command.args[0].glob:
        yield Does("P", "a glob can become an option of `printf`", "bypass")
    if form.startswith("-v") or re.search(r"%[^a-zA-Z%]*n", form):
        yield Does("V", "`printf` with `-v` or `%n` sets a variable")


def _late(command: Command, index: int) -> bool:
    return command.name == "echo" or (index > 0 and command.args[0].known)


def _fixed(command: Command) -> Iterator[Effect]:
    if not all(arg.known and not arg.glob for arg in command.args):
        yield Does("L", f"a word of `{command.name}` is only known when it runs")


_DATE_FLAGS = re.compile(r"-(?:[uRj]*(?:I(?:date|hours|minutes|seconds|ns)?)?)")
_DATE_LONG = ("utc", "universal", "rfc-3339", "rfc-email", "rfc-2822", "iso-8601", "resolution", "help", "version")
_HOSTNAME = re.compile(r"-[sfiIdA]+|--(?:short|fqdn|long|ip-address|all-ip-addresses|domain|version|help)")


def _date(command: Command) -> Iterator[Effect]:
    """Read `date`: a format is shown, a given date is reckoned with, and everything else sets the clock."""
    yield from _fixed(command)
    words = list(command.args)
    while words:
        text = words.pop(0).text
        name, equals, value = text[2:].partition("=") if text.startswith("--") else ("", "", "")
        if text.startswith("+") or _DATE_FLAGS.fullmatch(text) or (name and _whole_beginning(name)):
            continue
        if re.fullmatch(r"-u?[dfr]", text) or (name in ("date", "file", "reference") and not equals):
            value = words.pop(0).text if words else ""
        elif text.startswith(("-d", "-f", "-r")):
            value = text[2:]
        elif name not in ("date", "file", "reference"):
            yield Does("O", "`date` would set the clock")
            return
        if not text.startswith(("-d", "-ud", "--date")):
            yield read(Arg(value or "."))


def _whole_beginning(name: str) -> bool:
    return len(name) > 1 and any(option.startswith(name) for option in _DATE_LONG)


def _hostname(command: Command) -> Iterator[Effect]:
    yield from _fixed(command)
    if not all(_HOSTNAME.fullmatch(arg.text) for arg in command.args):
        yield Does("O", "`hostname` would set the host's name")


def _wait(command: Command) -> Iterator[Effect]:
    if not all(re.fullmatch(r"\d+|%\d+|-[nf]", arg.text) for arg in command.args):
        yield Does("V", "`wait` may set a variable")


def _strings(command: Command) -> Iterator[Effect]:
    yield from reader_effects(command, table.READERS["strings"])
    if any(arg.text.startswith("@") for arg in command.args):
        yield Does("O", "a file names more options of `strings`")


def _by_group(command: Command) -> Iterator[Effect]:
    name, shown = command.name, f"`{command.name}`"
    if name in table.NAMES_ONLY:
        if not all(arg.known for arg in command.args):
            yield Does("L", f"a word of {shown} is only known when it runs")
    elif name in table.VARIABLES or name in table.ENVIRONMENT:
        yield from _variables(command)
    elif name in table.NETWORK:
        yield Does("N", f"{shown} uses the network")
        yield from _saved(command)
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


def _saved(command: Command) -> Iterator[Effect]:
    """Yield the files that a program of the network writes by its options."""
    letter, names = {"curl": ("o", ("output",)), "wget": ("OPoa", ("output-document", "directory-prefix"))}.get(
        command.name, ("", ())
    )
    for at, arg in enumerate(command.args):
        after = command.args[at + 1] if at + 1 < len(command.args) else Arg(".")
        if arg.text.startswith("--") and names_long(arg.text, names):
            yield write(Arg(arg.text.partition("=")[2]) if "=" in arg.text else after, "rule")
        elif letter and (match := re.match(rf"-\w*?[{letter}](.*)", arg.text, re.DOTALL)):
            yield write(Arg(match[1]) if match[1] else after, "rule")


def _rsync(command: Command) -> Iterator[Effect]:
    words = operands(command.args)
    yield Does("X", "`rsync` writes many files and can run programs")
    if any(":" in arg.text for arg in words):
        yield Does("N", "`rsync` uses the network")
    yield from (read(arg, tree=True) for arg in words[:-1])
    yield from (write(arg, "rule") for arg in words[-1:])
    if has_option(command.args, "", ("delete", "delete-before", "delete-after", "delete-excluded", "delete-during")):
        yield from (delete(arg) for arg in words[-1:])


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
    name, (target, words) = command.name, _target(command.args)
    if any(arg.glob and arg.text[0] in "*?[-" for arg in command.args[: end_of_options(command.args)]):
        yield Does("P", f"a glob can become an option of `{name}`")
    if target or has_option(command.args, "lsbS", ("link", "symbolic-link", "suffix", "backup")):
        yield Does("E", f"`{name}` with an option that changes what it writes")
        yield from (write(arg, "rule") for arg in words)
        if target:
            yield from (delete(arg) for arg in words if name == "mv")
            yield from (write(target, "rule"), *_into_folder((*words, target)))
        return
    if name == "cp" and (has_option(command.args, "padP", ("preserve", "archive", "no-dereference"))):
        yield Does("E", "`cp` keeps links, permission bits or special files")
    for arg in words[:-1]:
        yield delete(arg, "mode") if name == "mv" else read(arg, tree=has_option(command.args, "rRa", ("recursive",)))
    yield from (write(arg) for arg in words[-1:])
    yield from _into_folder(words)
    if any(arg.text == "/dev/null" for arg in words[:-1]) or (name == "mv" and words and words[-1].text[:5] == "/dev/"):
        yield Does("D", "it empties or deletes")


def _target(args: Sequence[Arg]) -> tuple[Arg | None, list[Arg]]:
    """Return the folder that `-t` names, if one does, and the other operands."""
    for at, arg in enumerate(args[: end_of_options(args)]):
        value: Arg | None = None
        rest = [*args[:at], *args[at + 1 :]]
        if arg.text.startswith("--t"):
            value = Arg(arg.text.partition("=")[2]) if "=" in arg.text else None
        elif match := re.fullmatch(r"-[a-su-zA-Z]*t(.*)", arg.text, re.DOTALL):
            value = Arg(match[1]) if match[1] else None
        else:
            continue
        if value is None:
            value, rest = args[at + 1] if at + 1 < len(args) else Arg("."), [*args[:at], *args[at + 2 :]]
        return value, operands(rest)
    return None, operands(args)


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
    yield Does("E", f"`{command.name}` copies raw data")
    for arg in command.args:
        key, _, value = arg.text.partition("=")
        if key == "of":
            yield write(Arg(value), "rule")
        elif key == "if":
            yield read(Arg(value))


def _tar(command: Command) -> Iterator[Effect]:
    texts = [arg.text for arg in command.args]
    lists = len(texts) == 2 and re.fullmatch(r"-?t[vzjJ]*f|-?tf", texts[0]) and not command.args[1].glob
    if lists and ":" not in texts[1]:  # a colon names another machine
        yield read(command.args[1])
        return
    yield Does("E", "`tar` writes files or runs programs by its options")
    yield from (write(arg, "rule") for arg in operands(command.args) if arg.known)
    if has_option(command.args, "", ("remove-files",)):
        yield from (delete(arg) for arg in operands(command.args))


def _unzip(command: Command) -> Iterator[Effect]:
    words = [arg.text for arg in command.args]
    if words and words[0] in ("-l", "-v", "-t") and not any(word.startswith("-") for word in words[1:]):
        yield from (read(arg) for arg in operands(command.args))
        return
    yield Does("E", "`unzip` writes files that the archive names")


def _test(command: Command) -> Iterator[Effect]:
    texts = [arg.text for arg in command.args]
    evaluated = any("$(" in text or "`" in text for text in texts) or any(arg.glob for arg in command.args)
    reckoned = [at for at, text in enumerate(texts) if text in ("-eq", "-ne", "-lt", "-le", "-gt", "-ge")]
    sides = [text for at in reckoned for text in (*texts[max(at - 1, 0) : at], *texts[at + 1 : at + 2])]
    named = not all(re.fullmatch(r"-?\d+", text) for text in sides)
    if "-v" in texts or "-R" in texts or evaluated or named:
        yield Does("X", "this test evaluates a variable or its subscript")
    yield from reader_effects(command, table.Reader())


def _cd(command: Command) -> Iterator[Effect]:
    for arg in operands(command.args):
        if arg.text == "-":
            yield Does("O", "it goes to where the shell was before")
        else:
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
    | dict.fromkeys(("awk", "gawk", "mawk", "nawk"), awk)
    | dict.fromkeys(("cd", "pushd", "popd"), _cd)
    | dict.fromkeys(table.LISTERS_OF_DISKS, _disk_lister)
    | {"[": _test, "test": _test}
    | dict.fromkeys(("dd", "dcfldd", "dc3dd"), _dd)
    | dict.fromkeys(("trash", "trash-put", "rimraf"), _remove)
    | {"tee": _tee, "sed": sed, "jq": jq, "tar": _tar, "unzip": _unzip, "rsync": _rsync, "ddrescue": _copy}
    | {"date": _date, "hostname": _hostname, "wait": _wait, "strings": _strings}
)
