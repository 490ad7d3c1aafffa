"""Configuration files that are not regular, or that attack the parser, get one message and stop nothing else."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from callboard.adapters.extensions.hooks import http_limits
from callboard.adapters.extensions.yaml import load_document, load_front_document
from callboard.adapters.git.folders import find_folders
from callboard.adapters.git.settings import read_settings
from callboard.adapters.processes.sandbox.sandbox_paths import find_repository
from callboard.adapters.system.archive import git_folder
from callboard.adapters.system.regular_files import FileTooLarge, NotRegular, read_regular
from callboard.core.json_depth import DEEPEST, LONGEST_NUMBER
from callboard.core.trust.yaml_nodes import json_node
from callboard.types.errors import SettingsError

ALIASES = "a: &a [x,x,x,x,x,x,x,x]\n" + "".join(
    f"{new}: &{new} [{','.join(['*' + old] * 8)}]\n" for old, new in zip("abcdefgh", "bcdefghi", strict=True)
)
BOMBS: Mapping[str, str] = {
    "lists": "a: " + "[" * 100_000 + "]" * 100_000,
    "mappings": "a: " + "{a: " * 50_000 + "x" + "}" * 50_000,
    "dashes": "- " * 100_000 + "x",
    "lines": "".join(" " * depth + "a:\n" for depth in range(2_000)),
    "keys": "? " * 50_000 + "x",
    "aliases": ALIASES,
    "aliases in aliases": "a0: &a0 [x]\n" + "".join(f"a{n}: &a{n} [*a{n - 1}]\n" for n in range(1, 5_000)),
    "merges": "a: &a {x: 1}\nb0: &b0 {<<: *a}\n"
    + "".join(f"b{n}: &b{n} {{<<: [{', '.join([f'*b{n - 1}'] * 9)}]}}\n" for n in range(1, 9)),
    "itself": "a: &a\n  <<: *a\n",
    "unclosed": "[" * 100_000,
}
CHILD = """
import sys
from callboard.adapters.extensions.yaml import load_document, load_front_document
from callboard.types.errors import SettingsError
from tests.adapters.extensions.test_hostile_files import BOMBS
for name, text in BOMBS.items():
    for load, whole in ((load_document, text), (load_front_document, f"---\\n{text}\\n---\\nbody")):
        try:
            load(whole, "bomb.yaml")
        except SettingsError as refusal:
            assert str(refusal).startswith("bomb.yaml:"), refusal
            print(name)
"""


def refusal_of(read: Callable[..., object], *arguments: object) -> str:
    """Return the message with which a reader refuses a file, or "None" if it accepts the file."""
    try:
        read(*arguments)
    except SettingsError as refusal:
        return str(refusal)
    return "None"


@pytest.mark.slow
def test_no_yaml_ends_the_process() -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    ran = subprocess.run([sys.executable, "-c", CHILD], env=environment, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr[-2000:]
    assert ran.stdout.split("\n")[:-1] == [name for name in BOMBS for _ in range(2)]


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        ('!!binary "aGk="', "is YAML of the type binary"),
        ("!!set {x, y}", "is YAML of the type set"),
        ("!!omap [x: 1]", "is YAML of the type omap"),
        ("!!pairs [x: 1]", "is YAML of the type pairs"),
        ("!!timestamp 2001-01-01", "is YAML of the type timestamp"),
        ("!!python/name:os.system x", "is YAML of the type python/name:os.system"),
        ("!mine x", "is YAML of the type !mine"),
        ("!!int abc", "is not of the type int: abc"),
        ("!!float 1.2.3", "is not of the type float: 1.2.3"),
        ("!!bool maybe", "is not of the type bool: maybe"),
        ("!!null x", "is not of the type null: x"),
        ("9" * 20_000, "is a number of more than 400 characters"),
    ],
)
def test_a_value_that_json_does_not_have_is_refused_with_its_line(value: str, problem: str) -> None:
    for load, text in ((load_document, f"a:\n  b: {value}\n"), (load_front_document, f"---\na:\n  b: {value}\n---\n")):
        line = 2 if load is load_document else 3
        assert refusal_of(load, text, "x.yaml").startswith(f"x.yaml:{line}: a.b: {problem}")
    assert "is YAML of the type binary" in refusal_of(load_document, '? !!binary "aGk="\n: 1\n', "x.yaml")


@pytest.mark.parametrize("text", ["a: !!str 5\n", "a: !!int 5\n", "a: !!map {b: !!seq [1]}\n", "a: {<<: {b: 1}}\n"])
def test_a_type_that_json_has_may_be_written(text: str) -> None:
    assert load_document(text).data is not None


@given(st.recursive(st.integers() | st.text(max_size=5), lambda inner: st.lists(inner, max_size=4), max_leaves=30))
def test_a_text_that_people_write_is_not_refused(value: object) -> None:
    assert load_document(repr([value]).replace("'", '"') if "\\" not in repr(value) else "x").data is not None


@given(
    st.lists(st.sampled_from(["&a ", "*a ", "[", "]", "{", "}", "x", ", ", ": ", "\n", "- ", "? ", "<<"]), max_size=60)
)
def test_no_text_of_anchors_and_brackets_raises_anything_else(pieces: list[str]) -> None:
    text = "".join(pieces)
    for load in (load_document, load_front_document):
        assert refusal_of(load, text, "x.yaml").startswith(("x.yaml", "None"))


@pytest.mark.parametrize("text", ["[" * 5_000 + "]" * 5_000, '{"a":' * 5_000 + "1" + "}" * 5_000, "[" * 5_000])
def test_json_that_is_nested_too_deeply_is_refused_in_one_line(tmp_path: Path, text: str) -> None:
    with pytest.raises(ValueError, match=f"more than {DEEPEST} levels"):
        json_node(text)
    (tmp_path / "settings.json").write_text(f'{{"hooks": {text}}}')
    with pytest.raises(SettingsError, match=r"settings\.json: is nested too deeply"):
        http_limits(tmp_path / "settings.json")


@pytest.mark.parametrize("digits", [LONGEST_NUMBER + 1, 5_000])
def test_a_json_number_that_is_too_long_is_refused_in_our_words(tmp_path: Path, digits: int) -> None:
    text = f'{{"a": "{"1" * digits}",\n "hooks": {"1" * digits}}}'
    with pytest.raises(ValueError, match=rf"^has a number of more than {LONGEST_NUMBER} digits \(line 2\)$"):
        json_node(text)
    (tmp_path / "settings.json").write_text(text)
    with pytest.raises(SettingsError, match=r"settings\.json: has a number of more than"):
        http_limits(tmp_path / "settings.json")
    assert json_node(f'{{"a": {"1" * LONGEST_NUMBER}, "b": "{"1" * digits}"}}').members is not None


def test_brackets_in_texts_do_not_count() -> None:
    assert json_node('{"a": "' + "[" * 500 + '\\"' + "{" * 500 + '"}').members is not None


def fifo(path: Path) -> None:
    os.mkfifo(path)


def bound_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(os.path.relpath(path))


def device(path: Path) -> None:
    path.symlink_to("/dev/zero")


def folder(path: Path) -> None:
    path.mkdir()


def huge(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(1 << 33)


KINDS: tuple[Callable[[Path], None], ...] = (fifo, bound_socket, device, folder, huge)
READERS: Mapping[str, Callable[[Path], object]] = {
    "yaml": load_document,
    "front matter": load_front_document,
    "hooks": http_limits,
    "settings of git": read_settings,
    ".git": lambda path: find_folders(path.parent),
    ".git of the sandbox": lambda path: find_repository(str(path.parent)),
    ".git of the archive": lambda path: git_folder(path.parent),
}


@pytest.mark.parametrize("make", KINDS)
def test_what_is_no_regular_file_is_never_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, make: Callable[[Path], None]
) -> None:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / ".git"
    make(path)
    with pytest.raises((NotRegular, FileTooLarge)):
        read_regular(path, 1_000)
    for read in READERS.values():
        refusal = refusal_of(read, path)
        assert refusal == "None" or (str(path) in refusal and "cannot be read" in refusal)
