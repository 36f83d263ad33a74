"""Stage `propose`: the answers of a round that people compare, chosen by selectors."""

from __future__ import annotations

from typing import Any

from ratchet.components.data.groups import read_groups, write_groups
from ratchet.components.errors import DataError
from ratchet.components.stages import progress
from ratchet.components.stages.experience import context_of
from ratchet.components.stages.job import Job
from ratchet.components.training import rounds
from ratchet.components.training.loop import select_groups, texts_read


def propose(job: Job) -> dict[str, Any]:
    """Score the answers by the annotators before `rewards.people`, and let its selectors choose pairs or
    groups of answers for comparison. `DataError` if nothing is left.
    """
    options, context, built = job.options, context_of(job), rounds.Pieces(job.options)
    groups = read_groups(job.path("groups") / "groups.parquet")
    progress.expect("texts", texts_read(options["annotate"]) * sum(len(one.trajectories) for one in groups))
    marked, scored = rounds.score(groups, built, options, context)
    chosen, counts = select_groups(marked, built["select"], context)
    if not chosen:
        raise DataError(
            f"round {options['round']}: the selectors of `rewards.people` leave no answers to compare "
            f"({counts}); change or remove its `select`"
        )
    write_groups(job.work.product / "groups.parquet", chosen)
    return {"counts": {**scored, **counts}}
