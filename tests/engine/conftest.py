"""The engine's tests run on both event loops, in virtual time that jumps to whatever is due next."""

from __future__ import annotations

import pytest
from trio.testing import MockClock

from callboard.testing.world import VirtualLoop


@pytest.fixture(params=["asyncio", "trio"])
def anyio_backend(request: pytest.FixtureRequest) -> tuple[str, dict[str, object]]:
    """The loop, and its options."""
    if request.param == "trio":
        return "trio", {"clock": MockClock(autojump_threshold=0)}
    return "asyncio", {"loop_factory": VirtualLoop}
