"""The path of a file below a folder is what the library says."""

from __future__ import annotations

from pathlib import PurePosixPath

import pytest

from callboard.adapters.tools.roots import _beneath

PATHS = ["/", "/a", "/a/b", "/a/b c/d", "/ab", "/ab/c", "//a", "//a/b"]


@pytest.mark.parametrize("base", PATHS)
@pytest.mark.parametrize("path", PATHS)
def test_a_relative_path_is_that_of_the_library(path: str, base: str) -> None:
    below = PurePosixPath(path).is_relative_to(base)
    assert _beneath(path, base) == (str(PurePosixPath(path).relative_to(base)) if below else "")
