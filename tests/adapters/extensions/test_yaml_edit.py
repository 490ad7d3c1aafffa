"""Changes of one value in the text of a YAML file."""

from __future__ import annotations

import copy
import json
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from callboard.adapters.extensions.yaml import Address, load_yaml
from callboard.adapters.extensions.yaml_edit import with_value, without_value
from callboard.types.errors import SettingsError

FILE = """\
# mine
model: opus  # the large one

permission:
  # what may run
  allow:
  - Bash(git status)   # often
  - 'Read'

  # about the mode
  mode: plan
budget: {tokens: 5, steps: 3} # flow
status_line:
  command: |
    one
    two

# the end
limits:
"""


@pytest.mark.parametrize(
    ("address", "value", "before", "after"),
    [
        (("model",), "sonnet", "model: opus  #", "model: sonnet  #"),
        (("model",), "a: b", "model: opus  #", 'model: "a: b"  #'),
        (("model",), "12", "model: opus  #", 'model: "12"  #'),
        (("permission", "allow", 2), "Bash(npm run test:*)", "  - 'Read'\n", "  - 'Read'\n  - Bash(npm run test:*)\n"),
        (("permission", "allow", 0), "Edit", "  - Bash(git status)   #", "  - Edit   #"),
        (("permission", "mode"), "default", "  mode: plan\n", "  mode: default\n"),
        (("permission", "ask", 0), "Write", "  mode: plan\n", "  mode: plan\n  ask:\n    - Write\n"),
        (("budget", "tokens"), 6, "{tokens: 5, ", "{tokens: 6, "),
        (("budget", "agents"), 2, "steps: 3} #", "steps: 3, agents: 2} #"),
        (("budget",), {"steps": 1}, "{tokens: 5, steps: 3} #", "{steps: 1} #"),
        (("limits", "steps"), 30, "limits:\n", "limits: {steps: 30}\n"),
        (("limits",), {"steps": 30}, "limits:\n", "limits: {steps: 30}\n"),
        (("language",), "Latin", "limits:\n", "limits:\nlanguage: Latin\n"),
        (("status_line", "command"), "date", "command: |\n    one\n    two\n", "command: date\n"),
        (("status_line", "refresh"), 5, "    two\n", "    two\n  refresh: 5\n"),
        (
            ("permission", "allow"),
            ["Edit"],
            "  allow:\n  - Bash(git status)   # often\n  - 'Read'\n",
            "  allow: [Edit]\n",
        ),
    ],
)
def test_a_change_touches_only_its_own_place(address: Address, value: object, before: str, after: str) -> None:
    assert FILE.count(before) == 1
    assert with_value(FILE, address, value, where="f") == FILE.replace(before, after)


@pytest.mark.parametrize(
    ("address", "before", "after"),
    [
        (("model",), "model: opus  # the large one\n", ""),
        (("permission", "allow", 0), "  - Bash(git status)   # often\n", ""),
        (("permission", "allow", 1), "  - 'Read'\n", ""),
        (("permission", "mode"), "  mode: plan\n", ""),
        (("budget", "tokens"), "{tokens: 5, steps: 3}", "{steps: 3}"),
        (("budget", "steps"), "{tokens: 5, steps: 3}", "{tokens: 5}"),
        (("status_line", "command"), "status_line:\n  command: |\n    one\n    two\n", ""),
        (("limits",), "limits:\n", ""),
    ],
)
def test_a_removal_touches_only_its_own_place(address: Address, before: str, after: str) -> None:
    assert FILE.count(before) == 1
    assert without_value(FILE, address, where="f") == FILE.replace(before, after)


@pytest.mark.parametrize("text", ["", "# only a comment", "---\n", "{}\n", "a: 1\r\nb: 2\r\n"])
def test_a_first_value_gets_lines_of_its_own(text: str) -> None:
    changed = with_value(text, ("permission", "allow", 0), "Read", where="f")
    assert changed.startswith(text.removesuffix("{}\n"))
    assert ("\r\n" in changed) == ("\r\n" in text)
    assert changed.count("\r\n") in (0, changed.count("\n"))
    before = cast("dict[str, object]", load_yaml(text) or {})
    assert load_yaml(changed) == {**before, "permission": {"allow": ["Read"]}}


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("a: &x {k: 1}\nb: *x\n", ("a", "k")),
        ("a: &x 1\nb: *x\n", ("a",)),
        ("a: &x {k: 1}\nb: *x\n", ("b", "k")),
        ("a: &x {k: 1}\nb: *x\n", ("b", "z")),
    ],
)
def test_a_change_that_would_touch_another_value_is_refused_with_its_line(text: str, address: Address) -> None:
    with pytest.raises(SettingsError, match=r"f:[12]: .*change it in the file"):
        with_value(text, address, 2, where="f")


def test_a_broken_file_is_refused_with_its_line() -> None:
    with pytest.raises(SettingsError, match=r"f:\d: is not valid YAML"):
        with_value("a: 1\nb: [x\n", ("a",), 2, where="f")


KEYS = st.sampled_from(["a", "b", "model", "x.y", "with space", "*", "- dash", "#", "true", "1"])
TEXTS = st.text(st.characters(codec="utf-8", categories=("L", "N", "P", "S", "Zs")), max_size=8)
SCALARS = st.one_of(st.none(), st.booleans(), st.integers(-9, 9), TEXTS, KEYS)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3),
    max_leaves=8,
)
TREES = st.dictionaries(KEYS, VALUES, max_size=4)
"""Documents as settings files have them."""


@given(TREES, st.lists(KEYS, min_size=1, max_size=3), SCALARS, st.booleans())
def test_values_are_changed_as_asked(tree: dict[str, Any], keys: list[str], value: object, flow: bool) -> None:
    text = "# first\n" + (json.dumps(tree, ensure_ascii=False) if flow else _written(tree))
    assert (load_yaml(text) or {}) == tree
    expected = copy.deepcopy(tree)
    branch = expected
    for key in keys[:-1]:
        if not isinstance(branch.get(key), dict):
            branch[key] = {}
        branch = branch[key]
    branch[keys[-1]] = value
    changed = with_value(text, tuple(keys), value, where="f")
    assert changed.startswith("# first\n")
    assert load_yaml(changed) == expected
    removed = without_value(changed, tuple(keys), where="f")
    assert removed.startswith("# first\n")


def _written(tree: dict[str, object]) -> str:
    text = ""
    for key, value in tree.items():
        text = with_value(text, (key,), value, where="f") + "# between\n"
    return text
