"""Effects of known programs by their words. `effects_of` knows every program of the tables; all others are unknown.

Programs with their own small language (sed, awk, jq, find) are read strictly: anything that is not known to be harmless
asks.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Iterator, Mapping, Sequence

from callboard.core.permissions import command_table as table
from callboard.core.permissions import globs
from callboard.core.permissions.effects import Effect, Risk, RunsProjectFile, delete, may_change, read, write
from callboard.core.permissions.hard_deny import never
from callboard.core.permissions.option_parser import (
    end_of_options,
    has_option,
    names_long,
    operands,
    reader_effects,
    value_paths,
)
from callboard.core.permissions.sensitive_paths import FOLDERS_OF_PROTECTED, PROTECTED_NAMES
from callboard.core.permissions.shell_builtins import history_effects, variable_effects
from callboard.core.permissions.values import Arg, ProgramWords
from callboard.types.late_pattern import late_pattern

_AWK_UNSAFE = late_pattern(r"system|getline|ENVIRON|ARG|PROCINFO|SYMTAB|[|@]|print(?s:.*)>")
"""Unsafe awk code. `>` is a comparison if no print precedes it; `||` is removed first."""
_JQ_UNSAFE = late_pattern(
    r"(?<!\.)\benv\b|\.\.\s*env|\$(?:\s|#[^\n]*\n)*(?:ENV|__prog)|\binclude\b|\bimport\b|input_filename|modulemeta|\bgetpath_env\b"
)
_SED_ADDRESS = r"(?:\d+|\$|\d+~\d+|/(?:\[\^?\]?[^\]/\n]*\]|[^/\\\n\[]|\\.)*/I?|\+\d+)"
_SED_SUBSTITUTE = (
    r"s(?P<d>[^\w\s\\\[])"
    r"(?:\[\^?\]?(?:(?!(?P=d))[^\]\n])*\]|(?!(?P=d))[^\\\n\[]|\\.)*(?P=d)"  # no delimiter inside brackets: seds differ
    r"(?:(?!(?P=d))[^\\\n]|\\.)*(?P=d)[gpiIM0-9]*"
)
_SED_ONE = late_pattern(
    rf"\s*(?:{_SED_ADDRESS}(?:,{_SED_ADDRESS})?)?\s*!?\s*"
    rf"(?:\{{|\}}\s*(?:;|\n|$|(?=\}}))|(?:[pdqQ=nNDPhHgGxl]|{_SED_SUBSTITUTE})\s*(?:;|\n|$|(?=\}})))"
)
_SED_OPTION = late_pattern(r"-([nErszu]*)(e|i.*)?|--(quiet|silent|posix|regexp-extended|in-place(?:=.*)?)")
_SED_EMPTIES = late_pattern(r"\s*(?:1,\$)?\s*d\s*;?\s*")

_SED_FILE = late_pattern(r"(?:^|(?<=[\s;{}!$\d/|,#gpiIMe]))(?=([rRwW])[ \t]*([^\n]+))", re.MULTILINE)
_AWK_FILE = late_pattern(r"([<>])\s*\(?\s*\"([^\"\n]+)\"")
"""File that a command of `sed`, or a redirect of `awk`, names."""
_MOST_NAMED = 40


def sed(command: ProgramWords) -> Iterator[Effect]:
    """Yield the effects of a `sed` command. Options and scripts that are not known to be harmless ask."""
    if not all(arg.known for arg in command.args):
        yield Risk("L", "a word of `sed` is only known when it runs")
        return
    if any(arg.glob and arg.text[0] in "*?[-" for arg in command.args[: end_of_options(command.args)]):
        yield Risk("P", "a glob can become an option or a script of `sed`", "bypass")
    parsed = _sed_words(command)
    if isinstance(parsed, Risk):
        yield parsed
        yield from (write(arg, "rule") for arg in operands(command.args))
        return
    scripts, paths, in_place = parsed
    if not all(_sed_is_safe(script) for script in scripts):
        yield Risk("X", "this `sed` script may run commands or write files")
        yield from _named_by_code(_SED_FILE, "\n".join(scripts))
    for path in paths:
        yield write(path) if in_place else read(path)
        if in_place and any(_SED_EMPTIES.fullmatch(script) for script in scripts):
            yield delete(path)


def _sed_words(command: ProgramWords) -> tuple[list[str], list[Arg], bool] | Risk:
    """Return the scripts, the files, and True if the files are changed in place."""
    scripts = list[str]()
    paths = list[Arg]()
    in_place = False
    pending = ended = False
    for arg in command.args:
        text = arg.text
        if pending:
            scripts.append(text)
            pending = False
        elif text == "--" and not ended:
            ended = True
        elif text.startswith("-") and len(text) > 1 and not ended:
            cluster = _SED_OPTION.fullmatch(text)
            if cluster is None or re.search(r"[/*]", text):  # the suffix of backups can name another folder
                return Risk("X", f"`sed {text}` is not an option that is known to be harmless")
            in_place |= (cluster[2] or "").startswith("i") or (cluster[3] or "").startswith("in-place")
            pending = cluster[2] == "e"
        else:
            paths.append(arg)
    if not scripts and paths:
        scripts.append(paths.pop(0).text)
    return scripts, paths, in_place


def _sed_is_safe(script: str) -> bool:
    """Return True if the script consists only of printing, deleting lines and substitutions."""
    at = 0
    while at < len(script):
        match = _SED_ONE.match(script, at)
        if match is None or match.end() == at:
            return False
        at = match.end()
    return bool(script)


def _named_by_code(pattern: re.Pattern[str], code: str) -> Iterator[Effect]:
    """Yield the reads and writes of files that a script may name."""
    names = list(dict.fromkeys((match[1] in "rR<", match[2]) for match in pattern.finditer(code)))
    if len(names) > _MOST_NAMED:
        yield Risk("M", "it names too many files to be judged", "person")
    for reads, name in names[:_MOST_NAMED]:
        yield read(Arg(name)) if reads else write(Arg(name), "rule")


def awk(command: ProgramWords) -> Iterator[Effect]:
    """Yield the effects of an `awk` command."""
    args = list(command.args)
    if not all(arg.known for arg in args):
        yield Risk("L", "a word of `awk` is only known when it runs")
        return
    while args and args[0].text.startswith("-"):
        option = args.pop(0).text
        if re.fullmatch(r"-F.+|-v\w+=.*", option, re.DOTALL):
            continue
        if option not in ("-F", "-v") or not args:
            yield Risk("X", f"`awk {option}` is not an option that is known to be harmless")
            yield from (write(arg, "rule") for arg in operands(command.args))
            return
        args.pop(0)
    program = args.pop(0) if args else None
    if program and (program.glob or _AWK_UNSAFE.search(program.text.replace("||", ""))):
        yield Risk("X", "this `awk` program may run commands, write files or show the environment")
        yield from _named_by_code(_AWK_FILE, program.text)
    yield from (read(arg) for arg in args)


def jq(command: ProgramWords) -> Iterator[Effect]:
    """Yield the effects of a `jq` command."""
    yield from reader_effects(command, table.READERS["jq"])
    if any(_JQ_UNSAFE.search(arg.text) for arg in command.args):
        yield Risk("O", "this `jq` program may show the environment or load other programs")


_STANDARD_FOLDERS = ("/bin/", "/sbin/", "/usr/bin/", "/usr/sbin/", "/usr/local/bin/")
_GNU = late_pattern(r"g(rm|rmdir|unlink|shred|truncate|find|dd|mv|cp|tee|ln|chmod|chown)")
"""Names under which GNU programs are installed next to those of another system."""


def program_name(text: str) -> str:
    """Return the name of a program without a system folder; a path to any other folder is unchanged."""
    folder, _, base = text.rpartition("/")
    return base if base and (not folder or f"{folder}/" in _STANDARD_FOLDERS) else text


def likely_name(text: str) -> str:
    """Return the program that a path or an alternative name most likely refers to; empty for a plain name.

    `/bin/./rm`, `/snap/bin/rm` and `grm` can be any program, so they ask. The denials for `rm` also apply to them.
    """
    base = text.rpartition("/")[2]
    plain = _GNU.sub(r"\1", base) if _GNU.fullmatch(base) else base
    return "" if plain == program_name(text) else plain


def effects_of(command: ProgramWords) -> Iterator[Effect]:
    """Yield the effects of the command. A command without effects prints fixed text or does nothing."""
    refused = never(command)
    if refused:
        yield refused
    base = program_name(command.name)
    if "/" in base:
        yield Risk("X", f"`{command.name}` is a program given by its path")
        return
    plain = ProgramWords(base, command.args)
    if _asks_version(plain):
        if files := table.OBEYED.get(base):
            yield RunsProjectFile(base, files)
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


def _asks_version(command: ProgramWords) -> bool:
    texts = [arg.text for arg in command.args]
    if command.name in ("go", "helm", "docker") and texts == ["version"]:
        return True
    if command.name not in table.VERSIONED or len(texts) != 1:
        return False
    short = {"node": "-v", "npm": "-v", "python": "-V", "python3": "-V", "java": "-version", "ruby": "-v", "pip": "-V"}
    return texts[0] in ("--help", "--version") or texts[0] == short.get(command.name)


def _text_only(command: ProgramWords) -> Iterator[Effect]:
    command = _with_numbers(command)
    for index, arg in enumerate(command.args):
        if not arg.known and not (arg.output_only and command.name in _SHOW_OUTPUT and _late(command, index)):
            yield Risk("O", f"`{command.name}` would show or use a variable's value")
        elif arg.glob or "~" in arg.text[:1]:
            yield read(arg)
    form = command.args[0].text if command.name == "printf" and command.args else ""
    if form and command.args[0].glob:
        yield Risk("P", "a glob can become an option of `printf`", "bypass")
    if command.name == "printf" and not _prints_only(command.args):
        yield Risk("V", "`printf` sets a variable, or may: its format is not one that is known to only print")


_CONVERSIONS = late_pattern(
    r"(?:[^%]|%%|%[-+ #0']*(?:\*|\d+)?(?:\.(?:\*|-?\d*))?"
    r"(?:[hlLjtz]*[diouxXeEfFgGaAcsbqQ]|\([^()%\\]*(?:%\w[^()%\\]*)*\)T))*",
    re.DOTALL,
)
"""Formats of `printf` that only print. `%n` and `%ln` assign to the variable that an argument names."""


def _prints_only(args: Sequence[Arg]) -> bool:
    texts = [arg.text for arg in args]
    if texts[:1] == ["--"]:
        texts = texts[1:]
    elif texts and texts[0].startswith("-v"):
        return False
    return not texts or _CONVERSIONS.fullmatch(texts[0]) is not None


def _with_numbers(command: ProgramWords) -> ProgramWords:
    """Replace `$?` and similar with a number, for a command that treats all numbers alike."""
    return ProgramWords(command.name, tuple(Arg("0") if arg.number else arg for arg in command.args))


_SHOW_OUTPUT = ("echo", "printf", "basename", "dirname")


def _late(command: ProgramWords, index: int) -> bool:
    return command.name != "printf" or (index > 0 and command.args[0].known)


def _fixed(command: ProgramWords) -> Iterator[Effect]:
    if not all(arg.known and not arg.glob for arg in command.args):
        yield Risk("L", f"a word of `{command.name}` is only known when it runs")


_DATE_FLAGS = late_pattern(
    r"-(?:[uRj]*(?:I(?:d(?:a(?:t(?:e)?)?)?|h(?:o(?:u(?:r(?:s)?)?)?)?|m(?:i(?:n(?:u(?:t(?:e(?:s)?)?)?)?)?)?"
    r"|s(?:e(?:c(?:o(?:n(?:d(?:s)?)?)?)?)?)?|ns?)?)?)"
)
_DATE_LONG = ("utc", "universal", "rfc-3339", "rfc-email", "rfc-2822", "iso-8601", "resolution", "help", "version")
_HOSTNAME = late_pattern(r"-[sfiIdA]+|--(?:short|fqdn|long|ip-address|all-ip-addresses|domain|version|help)")


def _date(command: ProgramWords) -> Iterator[Effect]:
    """Read `date`: a format and a given date only print, and everything else sets the clock."""
    yield from _fixed(command)
    args = list(command.args)
    while args:
        text = args.pop(0).text
        name, equals, value = text[2:].partition("=") if text.startswith("--") else ("", "", "")
        if text.startswith("+") or _DATE_FLAGS.fullmatch(text) or (name and _whole_beginning(name)):
            continue
        if re.fullmatch(r"-u?[dfr]", text) or (name in ("date", "file", "reference") and not equals):
            value = args.pop(0).text if args else ""
        elif text.startswith(("-d", "-f", "-r")):
            value = text[2:]
        elif name not in ("date", "file", "reference"):
            yield Risk("O", "`date` would set the clock")
            return
        if not text.startswith(("-d", "-ud", "--date")):
            yield read(Arg(value or "."))


def _whole_beginning(name: str) -> bool:
    return len(name) > 1 and any(option.startswith(name) for option in _DATE_LONG)


def _hostname(command: ProgramWords) -> Iterator[Effect]:
    yield from _fixed(command)
    if not all(_HOSTNAME.fullmatch(arg.text) for arg in command.args):
        yield Risk("O", "`hostname` would set the host's name")


def _wait(command: ProgramWords) -> Iterator[Effect]:
    if not all(re.fullmatch(r"\d+|%\d+|-[nf]", arg.text) for arg in command.args):
        yield Risk("V", "`wait` may set a variable")


def _hash(command: ProgramWords) -> Iterator[Effect]:
    if has_option(command.args, "p"):
        yield Risk("L", "`hash -p` makes a name start another program", "person")
    yield Risk("X", "`hash` changes which program a name starts")


def _strings(command: ProgramWords) -> Iterator[Effect]:
    yield from reader_effects(command, table.READERS["strings"])
    if any(arg.text.startswith("@") for arg in command.args):
        yield Risk("O", "a file names more options of `strings`")


def _tree(command: ProgramWords) -> Iterator[Effect]:
    yield from reader_effects(command, table.READERS["tree"])
    clusters = (arg.text[1:] for arg in command.args if arg.text.startswith("-") and not arg.text.startswith("--"))
    if any("o" in cluster or "R" in cluster for cluster in clusters):
        # tree takes values from later words and goes on with the cluster: in `-Lo 2 FILE` it writes FILE.
        yield Risk("X", "an option of `tree` writes files")
        yield from (write(arg, "rule") for arg in operands(command.args))


def _arch(command: ProgramWords) -> Iterator[Effect]:
    if command.args:
        yield Risk("X", "`arch` with words runs another program on macOS")
    start = next((at for at, arg in enumerate(command.args) if not arg.text.startswith("-")), len(command.args))
    if command.args[start:]:
        yield from effects_of(ProgramWords(command.args[start].text, command.args[start + 1 :]))


def _by_group(command: ProgramWords) -> Iterator[Effect]:
    name = command.name
    label = f"`{command.name}`"
    if name in table.NAMES_ONLY:
        if not all(arg.known for arg in command.args):
            yield Risk("L", f"a word of {label} is only known when it runs")
    elif name in table.VARIABLES or name in table.ENVIRONMENT:
        yield from variable_effects(command)
    elif name in table.NETWORK:
        yield Risk("N", f"{label} uses the network")
        yield from _saved(command)
        yield from (read(arg) for arg in operands(command.args) if arg.known and arg.text.startswith(("/", "~", ".")))
        yield from may_change(command.args)
    elif name in table.PROCESSES:
        yield Risk("O", f"{label} touches other processes")
    elif name in table.METADATA:
        yield from _metadata(command)
    elif name in table.MAKERS_OF_SPECIAL or name in table.ARCHIVES:
        yield Risk("E", f"{label} makes files, links or permissions of its own choosing")
        yield from (write(arg, "rule") for arg in operands(command.args))
        yield from may_change(arg for arg in command.args if arg.text.startswith("-"))
    elif name in table.REPLACERS:
        yield from _compressor(command)
    else:
        yield Risk("X", f"{label} is not a program that is known to only read")
        yield from (read(arg) for arg in operands(command.args) if arg.known and "/" in arg.text)
        yield from may_change(command.args)


_TO_OUTPUT = late_pattern(r"-[dkvqf\d]*[clt][cdkltvqf\d]*|--(?:stdout|to-stdout|list|test)")
_OF_COMPRESSORS = late_pattern(
    r"-[cdkltvqf\d]+|--(?:stdout|to-stdout|list|test|decompress|uncompress|keep|quiet|verbose)"
)


def _compressor(command: ProgramWords) -> Iterator[Effect]:
    """Yield the effects of `gzip` and its like: `-c`, `-l`, and `-t` print, and leave the file as it is."""
    options = [arg.text for arg in command.args if arg.text.startswith("-") and arg.text not in ("-", "--")]
    prints = any(map(_TO_OUTPUT.fullmatch, options)) and all(map(_OF_COMPRESSORS.fullmatch, options))
    if not prints:
        yield Risk("D", f"`{command.name}` replaces and deletes files")
    yield from (read(arg) if prints else write(arg, "rule") for arg in operands(command.args))


def _saved(command: ProgramWords) -> Iterator[Effect]:
    """Yield the files that a network program writes because of its options."""
    letter, names = {"curl": ("o", ("output",)), "wget": ("OPoa", ("output-document", "directory-prefix"))}.get(
        command.name, ("", ())
    )
    for at, arg in enumerate(command.args):
        after = command.args[at + 1] if at + 1 < len(command.args) else Arg(".")
        if arg.text.startswith("--") and names_long(arg.text, names):
            yield write(Arg(arg.text.partition("=")[2]) if "=" in arg.text else after, "rule")
        elif letter and (match := re.match(rf"-\w*?[{letter}](.*)", arg.text, re.DOTALL)):
            yield write(Arg(match[1]) if match[1] else after, "rule")


def _rsync(command: ProgramWords) -> Iterator[Effect]:
    operand_args = operands(command.args)
    yield Risk("X", "`rsync` writes many files and can run programs")
    if any(":" in arg.text for arg in operand_args):
        yield Risk("N", "`rsync` uses the network")
    yield from (read(arg, tree=True) for arg in operand_args[:-1])
    yield from (write(arg, "rule") for arg in operand_args[-1:])
    if has_option(command.args, "", ("delete", "delete-before", "delete-after", "delete-excluded", "delete-during")):
        yield from (delete(arg) for arg in operand_args[-1:])


def _metadata(command: ProgramWords) -> Iterator[Effect]:
    yield Risk("E", f"`{command.name}` changes permissions or ownership")
    operand_args = operands(command.args)
    modes = [arg.text.lstrip("0").rstrip(",") for arg in operand_args[:1]]
    if command.name == "chmod" and any(
        re.fullmatch(r"[0-7]?777|[aogu]*[+=](?:rwx|rxw|wrx|wxr|xrw|xwr)", m) for m in modes
    ):
        yield Risk("F", "`chmod 777` opens a file to everyone", "person")
    yield from (write(arg, "rule") for arg in operand_args[1:])


def _remove(command: ProgramWords) -> Iterator[Effect]:
    yield Risk("D", f"`{command.name}` deletes", "named")
    if not all(arg.known for arg in command.args):
        yield Risk("L", "what it deletes is only known when it runs", "person")
    yield from (delete(arg, "named") for arg in operands(command.args))


def _empty(command: ProgramWords) -> Iterator[Effect]:
    yield Risk("D", f"`{command.name}` empties or destroys files")
    yield from (delete(arg) for arg in operands(command.args))


def _make(command: ProgramWords) -> Iterator[Effect]:
    if not operands(command.args):
        yield Risk("X", f"`{command.name}` without operands")
    if command.name == "mkdir" and has_option(command.args, "m", ("mode",)):
        yield Risk("E", "`mkdir -m` sets permissions")
    yield from (write(arg) for arg in operands(command.args))
    yield from value_paths(command.args)


def _copy(command: ProgramWords) -> Iterator[Effect]:
    name = command.name
    (target, paths) = _target(command.args)
    if any(arg.glob and arg.text[0] in "*?[-" for arg in command.args[: end_of_options(command.args)]):
        yield Risk("P", f"a glob can become an option of `{name}`")
    if target or has_option(command.args, "lsbS", ("link", "symbolic-link", "suffix", "backup")):
        yield Risk("E", f"`{name}` with an option that changes what it writes")
        yield from (write(arg, "rule") for arg in paths)
        if target:
            yield from (delete(arg) for arg in paths if name == "mv")
            yield from (write(target, "rule"), *_into_folder((*paths, target)))
        return
    if _names_unknown(command, paths):
        yield Risk("O", f"`{name}` writes files of any name into a folder where names can have an effect", "bypass")
    if name == "cp" and (has_option(command.args, "padP", ("preserve", "archive", "no-dereference"))):
        yield Risk("E", "`cp` keeps links, permission bits or special files")
    for arg in paths[:-1]:
        yield delete(arg, "mode") if name == "mv" else read(arg, tree=has_option(command.args, "rRa", ("recursive",)))
    yield from (write(arg) for arg in paths[-1:])
    yield from _into_folder(paths)
    if any(arg.text == "/dev/null" for arg in paths[:-1]) or (name == "mv" and paths and paths[-1].text[:5] == "/dev/"):
        yield Risk("D", "it empties or deletes")


def _names_unknown(command: ProgramWords, paths: Sequence[Arg]) -> bool:
    """Return True if it may write protected names that its words do not show: into the workspace's root, or `.github`.

    The content of a folder (`cp -r x/. .`), a glob that can mean a protected name, and `--parents` and `-T` of `cp`
    show none.
    """
    if not paths:
        return False
    target = paths[-1].text.rstrip("/") or "/"
    if target.rpartition("/")[2].lower() in FOLDERS_OF_PROTECTED:
        return True
    may_be_root = target in (".", "..") or target.startswith(("./..", "../", "/", "~")) or paths[-1].glob
    may_be_root = may_be_root or posixpath.normpath(target) in (".", "..")
    if not may_be_root and paths[-1].known:
        return False
    if has_option(command.args, "T", ("no-target-directory", "parents")):
        return True
    return any(_may_be_protected(source) for source in paths[:-1])


def _may_be_protected(source: Arg) -> bool:
    text = source.pattern if source.glob else source.text
    if text.endswith("/"):  # the content of the folder, for some versions of cp
        return True
    base = text.rpartition("/")[2]
    if not source.glob:
        return base in ("", ".", "..")
    match = globs.matcher(base).fullmatch
    return any(map(match, PROTECTED_NAMES))


def _target(args: Sequence[Arg]) -> tuple[Arg | None, list[Arg]]:
    """Return the folder of `-t`, if given, and the other operands."""
    for at, arg in enumerate(args[: end_of_options(args)]):
        value: Arg | None = None
        other_args = [*args[:at], *args[at + 1 :]]
        if arg.text.startswith("--t"):
            value = Arg(arg.text.partition("=")[2]) if "=" in arg.text else None
        elif match := re.fullmatch(r"-[a-su-zA-Z]*t(.*)", arg.text, re.DOTALL):
            value = Arg(match[1]) if match[1] else None
        else:
            continue
        if value is None:
            value = args[at + 1] if at + 1 < len(args) else Arg(".")
            other_args = [*args[:at], *args[at + 2 :]]
        return value, operands(other_args)
    return None, operands(args)


def _into_folder(paths: Sequence[Arg]) -> Iterator[Effect]:
    """Yield the writes if the last operand is a folder: the names of the sources inside it."""
    if not paths or not paths[-1].known or paths[-1].text.startswith("/dev/"):
        return
    for source in paths[:-1]:
        base = source.text.rstrip("/").rpartition("/")[2]
        if source.known and not source.glob and not paths[-1].glob and base not in ("", ".", ".."):
            yield write(Arg(f"{paths[-1].text}/{base}"))


def _tee(command: ProgramWords) -> Iterator[Effect]:
    yield from (write(arg) for arg in operands(command.args))


def _dd(command: ProgramWords) -> Iterator[Effect]:
    yield Risk("E", f"`{command.name}` copies raw data")
    for arg in command.args:
        key, _, value = arg.text.partition("=")
        if key == "of":
            yield write(Arg(value), "rule")
        elif key == "if":
            yield read(Arg(value))


def _tar(command: ProgramWords) -> Iterator[Effect]:
    texts = [arg.text for arg in command.args]
    lists = len(texts) == 2 and re.fullmatch(r"-?t[vzjJ]*f|-?tf", texts[0]) and not command.args[1].glob
    if lists and ":" not in texts[1]:  # a colon means another machine
        yield read(command.args[1])
        return
    yield Risk("E", "`tar` writes files or runs programs by its options")
    yield from (write(arg, "rule") for arg in operands(command.args) if arg.known)
    yield from may_change(arg for arg in command.args if arg.text.startswith("-"))
    if not texts or "x" not in texts[0].lstrip("-"):
        yield from (read(arg, tree=True) for arg in operands(command.args[1:]))
    if has_option(command.args, "", ("remove-files",)):
        yield from (delete(arg) for arg in operands(command.args))


def _unzip(command: ProgramWords) -> Iterator[Effect]:
    texts = [arg.text for arg in command.args]
    if texts and texts[0] in ("-l", "-v", "-t") and not any(word.startswith("-") for word in texts[1:]):
        yield from (read(arg) for arg in operands(command.args))
        return
    yield Risk("E", "`unzip` writes files that the archive names")
    yield from may_change(command.args)


def _test(command: ProgramWords) -> Iterator[Effect]:
    command = _with_numbers(command)
    texts = [arg.text for arg in command.args]
    evaluated = any("$(" in text or "`" in text for text in texts) or any(arg.glob for arg in command.args)
    reckoned = [at for at, text in enumerate(texts) if text in ("-eq", "-ne", "-lt", "-le", "-gt", "-ge")]
    sides = [text for at in reckoned for text in (*texts[max(at - 1, 0) : at], *texts[at + 1 : at + 2])]
    named = not all(re.fullmatch(r"-?\d+", text) for text in sides)
    if "-v" in texts or "-R" in texts or evaluated or named:
        yield Risk("X", "this test evaluates a variable or its subscript")
    yield from reader_effects(command, table.ReadingProgram())


def _cd(command: ProgramWords) -> Iterator[Effect]:
    for arg in operands(command.args):
        if arg.text == "-":
            yield Risk("O", "it changes to the previous folder of the shell")
        else:
            yield read(arg)
    if not operands(command.args) and command.name != "popd":
        yield Risk("O", f"`{command.name}` alone leaves the workspace")


def _disk_lister(command: ProgramWords) -> Iterator[Effect]:
    yield Risk("O", f"`{command.name}` reads disks")


_SPECIAL: Mapping[str, Callable[[ProgramWords], Iterator[Effect]]] = (
    dict.fromkeys(("rm", "rmdir", "unlink", "trash", "trash-put", "rimraf"), _remove)
    | dict.fromkeys(("truncate", "shred", "srm", "wipe"), _empty)
    | dict.fromkeys(("mkdir", "touch"), _make)
    | dict.fromkeys(("cp", "mv"), _copy)
    | dict.fromkeys(("awk", "gawk", "mawk", "nawk"), awk)
    | dict.fromkeys(("cd", "pushd", "popd"), _cd)
    | dict.fromkeys(table.LISTERS_OF_DISKS, _disk_lister)
    | {"[": _test, "test": _test}
    | dict.fromkeys(("dd", "dcfldd", "dc3dd"), _dd)
    | {"tee": _tee, "sed": sed, "jq": jq, "tar": _tar, "unzip": _unzip, "rsync": _rsync, "ddrescue": _copy}
    | {"arch": _arch, "tree": _tree, "date": _date, "hostname": _hostname, "wait": _wait}
    | {"hash": _hash, "strings": _strings, "fc": history_effects}
)
