"""What bash makes of words and formats is covered by what the judge takes them for, or unknown to it."""

from __future__ import annotations

import os
import random
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from tests.core.permissions import permission_words as made

from callboard.adapters.shell.parser import BashParser
from callboard.adapters.shell.paths import PathJudge
from callboard.core.permissions import globs
from callboard.core.permissions.effects import CallFacts
from callboard.core.permissions.facts import find_facts
from callboard.core.permissions.judge import judge_call
from callboard.core.permissions.sensitive_paths import is_secret
from callboard.core.permissions.values import AgentPolicy, Arg, Parsed, ProposedCall, Script, Simple
from callboard.core.permissions.word_expansion import expand

PARSER = BashParser()
HOME = "/home/me"
NOTHING: Mapping[str, Parsed] = {}
AT_ONCE = 50
"""Commands that one process parses."""


@pytest.fixture(scope="module")
def judge(tmp_path_factory: pytest.TempPathFactory) -> PathJudge:
    root = tmp_path_factory.mktemp("words") / "workspace"
    root.mkdir()
    made.make_files(root)
    return PathJudge(root, home=Path(HOME))


def decided(command: str, judge: PathJudge, mode: str = "default", parsed: Mapping[str, Parsed] = NOTHING) -> str:
    """Return the decision on a command. `parsed`: scripts that were parsed already."""

    def parse(source: str) -> Parsed:
        return parsed.get(source) or PARSER.parse(source)

    call = ProposedCall("bash", {"command": command}, "unknown")
    facts = find_facts(call, CallFacts(root=judge.root, home=judge.home), parse, judge.look)
    return judge_call(call, AgentPolicy(mode="bypassPermissions" if mode == "bypass" else "default"), facts).decision


def parse_all(commands: Sequence[str]) -> dict[str, Parsed]:
    """Parse commands of one line each, many with one process. A list in which one is not plain is parsed in halves."""
    if len(commands) <= 1:
        return {command: PARSER.parse(command) for command in commands}
    script = PARSER.parse("\n".join(commands))
    if isinstance(script, Script) and len(script.nodes) == len(commands):
        return {command: Script((node,)) for command, node in zip(commands, script.nodes, strict=True)}
    middle = len(commands) // 2
    return parse_all(commands[:middle]) | parse_all(commands[middle:])


def parse_words(words: Sequence[str]) -> dict[str, Parsed]:
    """Parse `cat WORD` for each word. One with a line break, or a backslash at its end, is parsed alone."""
    together = [f"cat {word}" for word in words if "\n" not in word and not word.endswith("\\")]
    alone = [f"cat {word}" for word in words if "\n" in word or word.endswith("\\")]
    parsed = {command: PARSER.parse(command) for command in alone}
    for start in range(0, len(together), AT_ONCE):
        parsed |= parse_all(together[start : start + AT_ONCE])
    return parsed


def taken_for(word: str, parsed: Mapping[str, Parsed] = NOTHING) -> tuple[Arg, ...] | None:
    """The judge's value of a word, or None where the command cannot be parsed (and so asks)."""
    script = parsed.get(f"cat {word}") or PARSER.parse(f"cat {word}")
    if not isinstance(script, Script) or len(script.nodes) != 1 or not isinstance(script.nodes[0], Simple):
        return None
    return tuple(arg for word in script.nodes[0].words[1:] for arg in expand(word, HOME))


def covers(arg: Arg, text: str) -> bool:
    if not arg.known:
        return True
    if not arg.glob:
        return arg.text == text
    pattern, path = arg.pattern.split("/"), text.split("/")
    fits = len(pattern) == len(path) and all(
        globs.matcher(a).fullmatch(b) if globs.is_pattern(a) else globs.unescape(a) == b
        for a, b in zip(pattern, path, strict=True)
    )
    return fits or text == globs.unescape(arg.pattern)


def is_harmless(text: str, root: str) -> bool:
    real = os.path.realpath(os.path.join(root, text))
    return (real == root or real.startswith(root + "/")) and not is_secret(
        real.removeprefix(root).strip("/").split("/")
    )


def compare(seed: int, count: int, judge: PathJudge) -> int:
    """Compare `count` words; return how many of them bash expanded to a secret."""
    draw, root = random.Random(seed), Path(judge.root)
    words = [made.word(draw) for _ in range(count)]
    secret = 0
    made_of = made.bash_words(words, root, HOME)
    parsed = parse_words([word for word, became in zip(words, made_of, strict=True) if became is not None])
    for word, became in zip(words, made_of, strict=True):
        if became is None or (args := taken_for(word, parsed)) is None:
            continue
        uncovered = [
            text
            for text in became
            if not any(covers(arg, text.replace(judge.root, ".", 1) if arg.text[:2] == "./" else text) for arg in args)
        ]
        if uncovered and word.startswith("~") and any(arg.variable for arg in args):  # a home, or no user's name
            assert decided(f"cat {word}", judge, parsed=parsed) != "allow", (word, became, args)
        else:
            assert not uncovered, (word, became, args)
        harmful = [text for text in became if text and not text.startswith("-") and not is_harmless(text, judge.root)]
        secret += bool(harmful)
        if harmful:
            assert decided(f"cat {word}", judge, parsed=parsed) != "allow", (word, became)
    return secret


@pytest.mark.parametrize(
    ("word", "sure"),
    [("~src/a.py", False), ("~no-such/x", False), ("{~src,a}/a.py", False), ("~/x", True), ("~root", True)],
)
def test_the_home_of_a_user_may_be_a_folder_of_the_workspace(word: str, sure: bool) -> None:
    args = taken_for(word)
    assert args is not None
    assert args[0].known
    assert args[0].variable == (not sure)


@pytest.mark.parametrize("word", ["{s..u..1\\}{r..t}c}", "{s..u..1x{r..t}c}", "{a..b{c,d}}", "x{a..b{c,d}e}y"])
def test_braces_inside_what_is_nearly_a_range_are_no_expansion_that_is_known(word: str, judge: PathJudge) -> None:
    (became,) = made.bash_words([word], Path(judge.root), HOME)
    args = taken_for(word)
    assert became is not None
    assert args is not None
    assert all(any(covers(arg, text) for arg in args) for text in became)


def test_commands_that_are_parsed_together_are_what_they_are_alone() -> None:
    draw = random.Random(5)
    words = [made.word(draw) for _ in range(200)]
    together = parse_words(words)
    assert {command: PARSER.parse(command) for command in together} == together


def test_what_bash_makes_of_a_word_is_covered_by_what_the_judge_takes_it_for(judge: PathJudge) -> None:
    assert compare(1, 800, judge) > 100


@pytest.mark.parametrize("word", ["$PWD-other/f", '$PWD"s"/f', "${PWD}s/[a-b]", '"$PWD"".."/f', "$PWD$'\\x73'/f"])
def test_a_neighbor_of_the_folder_is_not_taken_for_a_path_in_it(word: str) -> None:
    args = taken_for(word)
    assert args is not None
    assert not any(arg.known for arg in args)


@pytest.mark.parametrize(("word", "text"), [("$PWD", "."), ("$PWD/f", "./f"), ('"$PWD"/f', "./f"), ('"$PWD/f"', "./f")])
def test_the_folder_itself_is_known(word: str, text: str) -> None:
    args = taken_for(word)
    assert args is not None
    assert [arg.text for arg in args] == [text]


def test_a_format_of_printf_that_assigns_a_variable_asks(judge: PathJudge) -> None:
    draw = random.Random(2)
    formats = ["%n", "%ln", "%hn%s", "%d%5n", "%%%lln", *(made.printf_format(draw) for _ in range(300))]
    assigns = made.assigning_formats(formats, Path(judge.root), HOME)
    assert sum(assigns) > 5
    for form, yes in zip(formats, assigns, strict=True):
        assert not yes or decided(f"printf {_quoted(form)} x x x x", judge) != "allow", form


@pytest.mark.parametrize(
    "command", ["rm -rf /", "sudo id", "shutdown -h now", "mkfs.ext4 /dev/sda", "su root", "poweroff"]
)
def test_a_hard_rule_holds_for_a_name_with_parts_that_may_be_empty(command: str, judge: PathJudge) -> None:
    draw = random.Random(command)
    name, _, rest = command.partition(" ")
    for _ in range(25):
        at = draw.randint(0, len(name))
        empty = draw.choice([each for each in made.EMPTY if re.fullmatch(r"\$(?:\W|\{.*\})", each)])
        hidden = f"{name[:at]}{empty}{name[at:]} {rest}".rstrip()
        for mode in ("default", "bypass"):
            assert decided(hidden, judge, mode) == "deny", hidden
    for spaced in (f"{name}$IFS{rest.replace(' ', '$IFS')}", f"$x {command}", f"env $x {command}", f"{name}$@ {rest}"):
        assert decided(spaced, judge, "bypass") in ("ask", "deny"), spaced


def _quoted(text: str) -> str:
    return "'" + re.sub("'", "'\\\\''", text) + "'"


@pytest.mark.soak
def test_what_bash_makes_of_a_word_is_covered_soak(judge: PathJudge, soak: int) -> None:
    for seed in range(100, 100 + 40 * soak):
        assert compare(seed, 2_500, judge) > 100


@pytest.mark.soak
def test_a_format_of_printf_that_assigns_a_variable_asks_soak(judge: PathJudge, soak: int) -> None:
    draw = random.Random(3)
    for _ in range(10 * soak):
        formats = [made.printf_format(draw) for _ in range(2_000)]
        for form, yes in zip(formats, made.assigning_formats(formats, Path(judge.root), HOME), strict=True):
            assert not yes or decided(f"printf {_quoted(form)} x x x x", judge) != "allow", form
