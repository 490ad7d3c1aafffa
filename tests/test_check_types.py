"""Which modules a type check may leave out."""

from __future__ import annotations

import re
import tomllib

import pytest
from tests import check_types
from tests.test_architecture import RUNTIME, module_name
from tests.test_architecture import imported as imported_by_syntax


def digests_of(texts: dict[str, str]) -> dict[str, str]:
    named = {check_types.ROOT / "runtime" / "callboard" / f"{name}.py": text for name, text in texts.items()}
    return {path.stem: digest for path, digest in check_types.digests(named, "here").items()}


TEXTS = {
    "top": "from callboard import middle",
    "middle": "from callboard.low import (\n    one,\n    two,\n)",
    "low": "import os",
    "beside": "import callboard.low_of_another",
}


def test_a_change_reaches_all_modules_above_it_and_no_other() -> None:
    before, after = digests_of(TEXTS), digests_of({**TEXTS, "low": "import sys"})
    assert {name for name in TEXTS if before[name] != after[name]} == {"low", "middle", "top"}
    after = digests_of({**TEXTS, "top": ""})
    assert {name for name in TEXTS if before[name] != after[name]} == {"top"}


def test_programs_of_bench_import_each_other_by_their_bare_names() -> None:
    bench = check_types.ROOT / "bench"
    texts = {bench / "web.py": "import child\n", bench / "child.py": ""}
    before, after = (check_types.digests(each, "here") for each in (texts, {**texts, bench / "child.py": "x = 1"}))
    assert before[bench / "web.py"] != after[bench / "web.py"]


def test_modules_that_import_the_least_come_first() -> None:
    assert list(digests_of(TEXTS)) == ["beside", "low", "middle", "top"]


def test_a_change_of_the_environment_reaches_all() -> None:
    assert check_types.environment_of({"a": 1}) != check_types.environment_of({"a": 2})


@pytest.mark.slow  # it parses the whole runtime
def test_every_import_of_the_runtime_is_found() -> None:
    known = {module_name(path): path for path in RUNTIME}
    for path in RUNTIME:
        expected = imported_by_syntax(path) & known.keys()
        assert expected <= check_types.imported(path.read_text("utf-8"), known), path


def test_no_checked_module_imports_a_package_that_make_may_leave_out() -> None:
    """`make` installs the packages of the extra `browser` only beside Chromium. pyright has to pass without them."""
    project = tomllib.loads((check_types.ROOT / "pyproject.toml").read_text("utf-8"))
    packages = {re.split(r"[^\w-]", each)[0] for each in project["project"]["optional-dependencies"]["browser"]}
    found = [
        f"{path.relative_to(check_types.ROOT)}: {package}"
        for path in check_types.checked_files(project["tool"]["pyright"])
        for package in packages
        if re.search(rf"^ *(from|import) {package}\b", path.read_text("utf-8"), re.MULTILINE)
    ]
    assert not found
