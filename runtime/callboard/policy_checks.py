"""What `callboard policy test` and `lint` look at: settings with their examples and places. Composition; obeys nothing.

Both read the workspace's own files whether it is trusted or not: what they read takes no effect, and nothing is run.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import cast

from pydantic import ValidationError

from callboard.adapters.yaml_files import Address, YamlDocument, load_document
from callboard.core.permission.examples import Example, Tried, call_of
from callboard.core.permission.given import Misread
from callboard.core.permission.values import Verdict
from callboard.explaining import Explaining, InForce
from callboard.words.errors import UsageError
from callboard.words.settings_model import ExampleSetting

TESTS = Path(".callboard") / "policy-tests.yaml"
"""A list of examples, or a mapping with the one field `examples`."""


def examples_of(force: InForce) -> list[Example]:
    """The examples of the settings, then those of the workspace's file. Raises `SettingsError` for one that is none."""
    found: list[Example] = []
    for number, each in enumerate(force.loaded.settings.permission.examples):
        found.append(_example(each, force.loaded.place(("permission", "examples", number))))
    file = force.places.workspace / TESTS
    if file.is_file():
        found += _of_file(load_document(file))
    return found


def tried(force: InForce, explaining: Explaining) -> Iterator[Tried]:
    """Each example with what is decided of it now. Raises `SettingsError`."""
    for example in examples_of(force):
        yield Tried(example, _verdict(example, force, explaining))


def _verdict(example: Example, force: InForce, explaining: Explaining) -> Verdict:
    try:
        mode, rules = force.rights(example.agent)
        return explaining.judge(call_of(example, mode, rules, explaining.known)).verdict
    except (Misread, UsageError) as wrong:
        return Verdict("deny", "input", f"the call cannot be read: {wrong}")


def _of_file(document: YamlDocument) -> Iterator[Example]:
    data, start = document.data, cast("Address", ())
    if isinstance(data, dict) and set(cast("dict[str, object]", data)) == {"examples"}:
        data, start = cast("dict[str, object]", data)["examples"], ("examples",)
    if data is None:
        return
    if not isinstance(data, list):
        raise document.error("policy tests are a list of examples: `- {call: git push, decision: ask}`", start)
    for number, each in enumerate(cast("list[object]", data)):
        at: Address = (*start, number)
        try:
            yield _example(ExampleSetting.model_validate(each), document.place(at))
        except ValidationError as wrong:
            first = wrong.errors(include_url=False, include_input=False)[0]
            raise document.error(f"{first['msg'][0].lower()}{first['msg'][1:]}", (*at, *first["loc"][:1])) from wrong


def _example(given: ExampleSetting, place: str) -> Example:
    return Example(given.call, given.decision, place, given.by, given.mode, given.agent, given.folder)
