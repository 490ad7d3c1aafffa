"""Compare what each preset of the context pipeline costs for the same coding session, including rereads.

A model plays sessions of 150 and 400 steps (`context_session`) through each preset (`context_replay`), against the
prompt cache of the rehearsed service. It rereads content that it needs and no longer sees (`context_player`). The
bounds:

- `economic` costs at most `OF_UNCOMPACTED` of the uncompacted session with well-placed cache breakpoints in an
  unlimited window.
- `economic` costs less than `progressive`, `micro`, and `regional`, at both lengths.
- `economic` costs at most `OF_SEARCH` of the best edits that a search finds with knowledge of the whole session
  (`context_search`).
- At most `REREADS` of the steps of `economic` are rereads.

The worst of several seeds counts. One session is played again through the engine over HTTP, and must cost the same.
Exit with 1 if a bound is exceeded.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

import anyio
from context_http import over_http
from context_replay import Played, Replay
from context_search import cheapest
from context_session import Session, make_session

from callboard.core.context.pipeline import PRESETS
from callboard.types.agent_spec import StageSpec

OF_UNCOMPACTED = 0.60
"""Greatest ratio of `economic` to the uncompacted session, at 150 steps."""
OF_SEARCH = 1.25
"""Greatest ratio of `economic` to the best edits found afterwards, at both lengths."""
REREADS = 0.03
"""Greatest share of rereads among the steps of `economic`, at both lengths."""
OVER_HTTP = 0.01
"""Greatest relative difference between the replay and the engine over HTTP."""

SEEDS = (0, 1, 2)
LENGTHS = (150, 400)
RIVALS = ("progressive", "micro", "regional")
NO_END = 10_000_000


@dataclass
class Run:
    """Results of one session in all variants."""

    seed: int
    steps: int
    uncompacted: Played
    presets: dict[str, Played]
    points: float
    """Units with the best edits, found afterwards."""
    foresight: float
    """Units with the best edits, also knowing what later steps need; 0 if not searched for."""

    @property
    def economic(self) -> Played:
        return self.presets["economic"]


def main() -> int:
    """Print the table, and return 1 if a bound is exceeded."""
    began = time.monotonic()
    runs = [_run(seed, steps) for steps in LENGTHS for seed in SEEDS]
    for steps in LENGTHS:
        _table(steps, [run for run in runs if run.steps == steps])
    faults = [fault for run in runs for fault in _faults(run)]
    faults += _cross_check()
    print(f"\n{len(runs)} sessions in {time.monotonic() - began:.0f} s")
    for fault in faults:
        print(f"BROKEN: {fault}")
    return 1 if faults else 0


def _run(seed: int, steps: int) -> Run:
    session = make_session(seed, steps)
    presets = {name: Replay(session, PRESETS[name]).run() for name in (*RIVALS, "economic")}
    return Run(
        seed,
        steps,
        Replay(session, (), window=NO_END).run(),
        presets,
        cheapest(session, foresight=False).cost,
        cheapest(session, foresight=True).cost if steps == LENGTHS[0] else 0.0,
    )


def _table(steps: int, runs: Sequence[Run]) -> None:
    print(f"\n{steps} steps, seeds {', '.join(str(run.seed) for run in runs)}: units of uncached input, worst seed")
    print(f"{'':24}{'units':>12}{'of uncompacted':>16}{'rereads':>10}{'largest view':>14}  edits")
    _row("uncompacted", [(run.uncompacted, run) for run in runs])
    for name in (*RIVALS, "economic"):
        _row(name, [(run.presets[name], run) for run in runs])
    for name, units in (
        ("best edits afterwards", [run.points for run in runs]),
        ("and knowing all reads", [run.foresight for run in runs]),
    ):
        if not all(units):
            continue
        ratios = [one / run.uncompacted.units for one, run in zip(units, runs, strict=True)]
        over = max(run.economic.units / one for one, run in zip(units, runs, strict=True))
        print(f"{name:24}{max(units):12,.0f}{max(ratios):16.3f}{'':26}economic is {over:.2f} of it")


def _row(name: str, played: Sequence[tuple[Played, Run]]) -> None:
    units = max(one.units for one, _ in played)
    ratio = max(one.units / run.uncompacted.units for one, run in played)
    share = max(one.share for one, _ in played)
    largest = max(one.largest for one, _ in played)
    edits = ", ".join(f"{kind} {count}" for kind, count in played[0][0].edits.items())
    print(f"{name:24}{units:12,.0f}{ratio:16.3f}{share:10.1%}{largest:14,}  {edits}")


def _faults(run: Run) -> list[str]:
    where = f"{run.steps} steps, seed {run.seed}:"
    ours, found = run.economic, list[str]()
    if run.steps == LENGTHS[0] and ours.units > OF_UNCOMPACTED * run.uncompacted.units:
        found.append(f"{where} {ours.units / run.uncompacted.units:.3f} of uncompacted, {OF_UNCOMPACTED} allowed")
    for name in RIVALS:
        if ours.units >= run.presets[name].units:
            found.append(f"{where} {name} costs less")
    if ours.units > OF_SEARCH * run.points:
        found.append(f"{where} {ours.units / run.points:.2f} of the best edits, {OF_SEARCH} allowed")
    if ours.share > REREADS:
        found.append(f"{where} {ours.share:.1%} of the steps are rereads, {REREADS:.0%} allowed")
    return found


def _cross_check() -> list[str]:
    """Run the same session through the engine over HTTP, and return the differences."""
    session = make_session(SEEDS[0], 90)
    session = Session(session.first, [replace(work, idle=0.0) for work in session.works])
    pipeline: Sequence[StageSpec] = PRESETS["economic"]
    units = Replay(session, pipeline).run().units
    billed, _ = anyio.run(over_http, session, pipeline)
    off = abs(billed / units - 1)
    print(f"\nover HTTP, through the engine: {billed:,.0f} units; replayed: {units:,.0f} ({off:.2%} apart)")
    return [] if off <= OVER_HTTP else [f"the replay is {off:.1%} from what the engine is billed over HTTP"]


if __name__ == "__main__":
    sys.exit(main())
