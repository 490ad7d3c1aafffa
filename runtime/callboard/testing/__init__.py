"""Test kit for users' own teams, also used by Callboard's tests of the engine: a world in memory (docs/testing.md).

from callboard.testing import Rehearsal, assert_that, run_virtual, say, use

def test_the_lead_looks_before_it_answers() -> None:
    team = Rehearsal({"lead": [use("weather", {"city": "Oslo"}), say("Take a coat.")]}, tools=[weather])
    record = run_virtual(team.run, "What should I wear in Oslo?")
    assert_that(record).lead.called("weather", city="Oslo").ended_with("coat")
"""

from callboard.testing.records import Called, Recorded, ThatAgent, ThatSession, assert_that, recorded
from callboard.testing.rehearsing import Rehearsal, RehearsedSession, Survived, pretend, survive
from callboard.testing.scripts import Played, ScenarioModel, ScriptedModel, fault, say, use
from callboard.testing.world import AllowAll, MemoryArchive, NoLauncher, SeededDice, SteadyClock, World, run_virtual
from callboard.testing.world import WorldSession as HostedSession

__all__ = [
    "AllowAll",
    "Called",
    "HostedSession",
    "MemoryArchive",
    "NoLauncher",
    "Played",
    "Recorded",
    "Rehearsal",
    "RehearsedSession",
    "ScenarioModel",
    "ScriptedModel",
    "SeededDice",
    "SteadyClock",
    "Survived",
    "ThatAgent",
    "ThatSession",
    "World",
    "assert_that",
    "fault",
    "pretend",
    "recorded",
    "run_virtual",
    "say",
    "survive",
    "use",
]
