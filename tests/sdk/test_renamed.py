"""Module names from earlier documentation still import, and are the same modules."""

from __future__ import annotations

import subprocess
import sys
from importlib import import_module

import pytest

from callboard._renamed import RENAMED


@pytest.mark.slow(keep=1)
@pytest.mark.parametrize("old", RENAMED)
def test_an_earlier_name_imports_the_module_of_the_new_one(old: str) -> None:
    child = (
        "import sys, warnings, importlib\n"
        "warnings.simplefilter('error')\n"
        "old, new = sys.argv[1:]\n"
        "with warnings.catch_warnings(record=True) as heard:\n"
        "    warnings.simplefilter('always', DeprecationWarning)\n"
        "    module = importlib.import_module(old)\n"
        "assert module is importlib.import_module(new), module\n"
        "assert module.__spec__.name == new, module.__spec__\n"
        "assert f'{old} is now {new}: import that' in [str(one.message) for one in heard], heard\n"
    )
    subprocess.run([sys.executable, "-c", child, old, RENAMED[old]], check=True, timeout=180)


def test_a_submodule_of_a_renamed_package_is_loaded_once() -> None:
    child = (
        "import warnings; warnings.simplefilter('ignore')\n"
        "from callboard.adapters.rehearsal.replies import Reply as old\n"
        "from callboard.adapters.models.rehearsal.replies import Reply as new\n"
        "assert old is new\n"
    )
    subprocess.run([sys.executable, "-c", child], check=True, timeout=180)


def test_other_names_that_are_gone_say_so() -> None:
    with pytest.raises(ModuleNotFoundError, match=r"callboard\.faces"):
        import_module("callboard.faces")
