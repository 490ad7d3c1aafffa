"""Names of critical folders, and characters that are hard to see: shortcuts for usual paths change no answer."""

from __future__ import annotations

import posixpath
import unicodedata

from hypothesis import given
from hypothesis import strategies as st

from callboard.core.permissions.command_table import TOP_LEVEL
from callboard.core.permissions.sensitive_paths import critical, hard_to_see, harmless_device

_PARTS = st.sampled_from(["home", "Users", "ann", "tmp", "usr", "..", ".", "", "work", "a"])
_PATHS = st.lists(_PARTS, max_size=8).map(lambda parts: "/" + "/".join(parts))


@given(path=_PATHS, home=_PATHS | st.just("ann/work"))
def test_a_critical_path_is_a_home_or_above_one_or_at_the_top(path: str, home: str) -> None:
    parts = [part for part in posixpath.normpath(path).split("/") if part]
    home_parts = [part for part in posixpath.normpath(home).split("/") if part]
    above_home = parts == home_parts[: len(parts)]
    a_home = len(parts) == 2 and parts[0] in ("home", "Users")
    assert critical(path, home) == (above_home or a_home or (len(parts) == 1 and parts[0] in TOP_LEVEL))


@given(text=st.text(alphabet=st.characters() | st.sampled_from("ab /\\\t\n\x7f\u200b\u202e"), max_size=12))
def test_a_character_that_is_hard_to_see_is_found_in_any_text(text: str) -> None:
    kinds = ("Cc", "Cf", "Cn", "Co", "Cs", "Zl", "Zp", "Zs")
    odd = [char for char in text if char != " " and unicodedata.category(char) in kinds]
    assert hard_to_see(text) == (f"U+{ord(odd[0]):04X}" if odd else "")


def test_only_devices_whose_use_changes_nothing_are_harmless() -> None:
    assert all(map(harmless_device, ("/dev/null", "/dev/urandom", "/dev/fd/3")))
    assert not any(map(harmless_device, ("/dev/sda", "/dev/null/x", "dev/null", "/x/dev/null", "/dev/")))
