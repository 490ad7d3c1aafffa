"""Named pipelines: stages with parameters, each of which a custom list can change.

`economic` is the default. `react` and `truncate_oldest` follow all of them. The numbers of `progressive`, `micro` and
`regional` are those of the systems that made these compositions known, so that measurements compare like with like.
Only the summary after the regions of `regional` is an addition: otherwise summaries of regions would fill the window.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from callboard.types.agent_spec import StageSpec

PRESETS: Mapping[str, tuple[StageSpec, ...]] = MappingProxyType(
    {
        "economic": (
            StageSpec(stage="persist_large_results"),
            StageSpec(stage="economic"),
            StageSpec(stage="summarize_all"),
        ),
        "progressive": (
            StageSpec(stage="persist_large_results"),
            StageSpec(stage="snip_middle"),
            StageSpec(
                stage="clear_old_results",
                params={
                    "keep": 3,
                    "keep_of": "all",
                    "left_alone": 120,
                    "mark": "[Earlier result compacted; run again if needed.]",
                    "over": 0.0,
                    "at_least": 0.0,
                },
            ),
            StageSpec(stage="summarize_all", params={"over_chars": 50_000, "at_least": 0.2, "resummarize": "allow"}),
        ),
        "micro": (
            StageSpec(
                stage="clear_old_results",
                params={
                    "keep": 3,
                    "keep_of": "answered",
                    "preserve_tools": ["read_file"],
                    "left_alone": 100,
                    "mark": "[Previous: used NAME]",
                    "over": 0.0,
                    "at_least": 0.0,
                },
            ),
            StageSpec(stage="summarize_all", params={"over_tokens": 50_000, "at_least": 0.2, "resummarize": "allow"}),
        ),
        "regional": (
            StageSpec(stage="persist_large_results", params={"trigger": "fit", "each": 10_000}),
            StageSpec(stage="summarize_regions", params={"at_least": 0.1}),
            StageSpec(stage="summarize_all", params={"over": 0.9, "at_least": 0.2, "resummarize": "allow"}),
        ),
    }
)
DEFAULT_PIPELINE = PRESETS["economic"]
