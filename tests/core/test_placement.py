"""Choice of a host for a session: labels, room, load."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from callboard.core.placement import HostChoice, missing_labels, rank_hosts, read_labels, why_waiting
from callboard.types.errors import UsageError

ONE = HostChoice("one:1", {"gpu": "a100", "docker": "yes"}, 2)
TWO = HostChoice("two:1", {"docker": "yes"}, 1)
THREE = HostChoice("three:1", {}, 0)
HOSTS = (ONE, TWO, THREE)


def test_the_host_with_the_fewest_sessions_comes_first() -> None:
    assert [host.name for host in rank_hosts("s", {}, HOSTS)] == ["three:1", "two:1", "one:1"]


def test_only_hosts_with_all_labels_are_chosen() -> None:
    assert [host.name for host in rank_hosts("s", {"docker": "yes"}, HOSTS)] == ["two:1", "one:1"]
    assert rank_hosts("s", {"docker": "yes", "gpu": "h100"}, HOSTS) == []
    assert missing_labels({"gpu": "h100", "docker": "yes"}, ONE.labels) == ["gpu=h100"]


@pytest.mark.parametrize("change", [{"limit": 2}, {"draining": True}, {"silent": True}])
def test_a_host_that_is_full_draining_or_silent_is_not_chosen(change: dict[str, int]) -> None:
    host = replace(ONE, **change)
    assert rank_hosts("s", {}, [host]) == []
    assert "1 host with its labels" in why_waiting({}, [host])


def test_many_sessions_spread_over_equal_hosts() -> None:
    hosts = [HostChoice(f"host{number}:1", {}, 0) for number in range(4)]
    first = Counter(rank_hosts(f"session{number}", {}, hosts)[0].name for number in range(400))
    assert len(first) == 4
    assert min(first.values()) > 50


def test_a_session_waits_for_a_stated_reason() -> None:
    assert why_waiting({}, HOSTS) == ""
    assert "`callboard serve`" in why_waiting({}, [])
    assert "gpu=h100" in why_waiting({"gpu": "h100"}, HOSTS)


def test_labels_are_read_from_words() -> None:
    assert read_labels(["gpu=a100", "docker"], "--label") == {"gpu": "a100", "docker": "yes"}
    for wrong in ("=x", "gpu="):
        with pytest.raises(UsageError, match="KEY=VALUE"):
            read_labels([wrong], "--label")
