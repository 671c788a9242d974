"""Which figures of pipelines a summary holds."""

from __future__ import annotations

from collections.abc import Iterator

from analysis.rows import Drawing, Summary

_BUBBLES = (
    "Every pass of {workloads} on {devices} devices over two steps, on the virtual clock. White is a bubble: above one "
    "job has the devices alone, below the other one's passes are in its bubbles."
)


def pipeline_drawings(summary: Summary) -> Iterator[Drawing]:
    """The bubbles of each group of jobs that share devices and tell their passes."""
    from analysis.pipelines import plots

    for place, row in enumerate(summary.timelines):
        caption = _BUBBLES.format(workloads=" and ".join(row.workloads), devices=row.num_ranks)
        yield Drawing(
            name=f"bubbles-{place + 1}",
            topic="sharing",
            caption=f"{row.group}. {caption}",
            figure=plots.bubbles(row),
            record_ids=row.ids,
        )
