"""The stages of the context pipeline, by name: each looks at a view and returns edits, or the summary wanted. Pure.

`(view, budget, situation, params) -> edits | SummaryWanted | None`; None and no edits mean that there is nothing to
do. The budget is what the messages may take, in tokens. A stage heeds its own threshold. It refuses to touch what the
model has not seen, pins, and blocks that are not compactable; and it never returns an edit that does not make the view
smaller. Each has a file of its own, or shares one with its kin.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from callboard.core.context.situation import Situation
from callboard.core.context.stages.clearing import CLEAR, clear_old_results
from callboard.core.context.stages.economic import ECONOMIC, economic
from callboard.core.context.stages.last_resort import IMAGES, NEWEST, drop_old_images, persist_newest
from callboard.core.context.stages.persisting import PERSIST, persist_large_results
from callboard.core.context.stages.regions import REGIONS, summarize_regions
from callboard.core.context.stages.snipping import SNIP, snip_middle
from callboard.core.context.stages.summarizing import REACT, SUMMARIZE, react, summarize_all
from callboard.core.context.stages.truncating import TRUNCATE, truncate_oldest
from callboard.core.context.view.conversation import Conversation
from callboard.words.context import Edit, SummaryWanted
from callboard.words.values import Json

Found = list[Edit] | SummaryWanted | None
Stage = Callable[[Conversation, int, Situation, Json], Found]

STAGES: Mapping[str, Stage] = MappingProxyType(
    {
        "persist_large_results": persist_large_results,
        "snip_middle": snip_middle,
        "clear_old_results": clear_old_results,
        "economic": economic,
        "summarize_regions": summarize_regions,
        "summarize_all": summarize_all,
        "react": react,
        "truncate_oldest": truncate_oldest,
        "persist_newest": persist_newest,
        "drop_old_images": drop_old_images,
    }
)

DEFAULTS: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {
        "persist_large_results": PERSIST,
        "snip_middle": SNIP,
        "clear_old_results": CLEAR,
        "economic": ECONOMIC,
        "summarize_regions": REGIONS,
        "summarize_all": SUMMARIZE,
        "react": REACT,
        "truncate_oldest": TRUNCATE,
        "persist_newest": NEWEST,
        "drop_old_images": IMAGES,
    }
)
"""Every stage with its parameters; what they mean stands with each."""

CHOICES: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "trigger": ("total", "each", "fit"),
        "keep_of": ("answered", "all"),
        "unit": ("results", "turns"),
        "resummarize": ("never", "allow"),
        "input": ("all", "head", "tail", "both"),
        "place": ("system", "user"),
    }
)
"""Parameters that are one of a few words."""

BEHIND = ("react", "truncate_oldest", "persist_newest", "drop_old_images")
"""What stands behind every pipeline and is not listed."""
LISTED = tuple(name for name in STAGES if name not in BEHIND)

SUMMARIES = frozenset({"summarize_regions", "summarize_all", "react"})
"""Stages that are not asked after too many failed summaries."""
