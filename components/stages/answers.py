"""Stage `answers`: a model answers the held-out prompts of one arm of the evaluation."""

from __future__ import annotations

import functools
import math
import time
from collections.abc import Mapping, Sequence
from typing import Any

from ratchet.components.data.groups import read_groups, write_groups
from ratchet.components.errors import DataError
from ratchet.components.evaluation.certificate import require
from ratchet.components.piece import build
from ratchet.components.stages import progress
from ratchet.components.stages.engines import LazyMapping
from ratchet.components.stages.experience import certificate_of, context_of, sampling_summary
from ratchet.components.stages.job import Job
from ratchet.components.stages.overlay import Overlay
from ratchet.components.stages.shards import sharded_engine
from ratchet.components.training.loop import texts_read
from ratchet.components.training.reward_columns import reward_columns
from ratchet.components.types import Context, Group, Prompt


def answers(job: Job) -> dict[str, Any]:
    """Write the answers to the held-out prompts; with best-of-n decoding, the best of each n."""
    options = job.options
    records = read_groups(job.path("data") / f"{options['data']}.parquet")
    prompts = [group.prompt for group in records[: options["prompts"]]]
    rollout, best_of = dict(options["rollout"]), options.get("best_of")
    if best_of:
        rollout["responses_per_prompt"] *= best_of["n"]
        for model in options["certified"]:
            require(certificate_of(job, model), f"the reward model {model!r}")
    each = rollout.get("responses_per_prompt")
    if best_of:
        progress.expect(
            "texts", rollout["responses_per_prompt"] * len(prompts) * (1 + texts_read(best_of["annotate"]))
        )
    else:
        progress.expect("answers", each and each * len(prompts))
    began = time.monotonic()
    groups = sampled(prompts, rollout, context(job))
    seconds = time.monotonic() - began  # includes loading the model
    tokens = sum(sum(t.mask) for g in groups for t in g.trajectories)
    if best_of:
        groups = best(groups, best_of, context(job))
    write_groups(job.work.product / "groups.parquet", groups)
    return sampling_summary(groups, tokens, seconds)


def context(job: Job) -> Context:
    """Models of the stage, loaded at first use; `policy` is the arm's."""
    inputs = [name for name in ("policy", "base") if name in job.inputs]
    engine = functools.cache(lambda name: sharded_engine(job.options["profile"], job.path(name)))
    own = LazyMapping(**{name: functools.partial(engine, name) for name in inputs})
    models = Overlay(context_of(job, certified=False).models, own)
    return Context(models=models, seed=job.options["seed"], round=0)


def sampled(prompts: Sequence[Prompt], rollout: Mapping[str, Any], ctx: Context) -> list[Group]:
    """One group of answers to each prompt, in order. `DataError` otherwise, since arms are paired by
    prompt.
    """
    groups = list(build("rollout", rollout)(prompts, ctx))
    if [group.prompt.id for group in groups] != [prompt.id for prompt in prompts]:
        raise DataError(
            f"rollout {rollout['name']!r} returned {len(groups)} groups for {len(prompts)} prompts; expected "
            "one group for each prompt, in their order. Mark failures with stop='error'"
        )
    if empty := next((group for group in groups if not group.trajectories), None):
        raise DataError(
            f"rollout {rollout['name']!r} has no answer to prompt {empty.prompt.id!r}; mark failures with "
            "stop='error'"
        )
    return groups


def best(groups: Sequence[Group], best_of: Mapping[str, Any], ctx: Context) -> list[Group]:
    """Best-of-n: from each `n` consecutive answers the one with the highest reward (the last reward written);
    the first among ties.
    """
    scored = list(groups)
    for spec in best_of["annotate"]:
        columns = build("annotate", spec)(scored, ctx)
        scored = [g.extended({name: rows[i] for name, rows in columns.items()}) for i, g in enumerate(scored)]
    name, n = reward_columns(best_of["annotate"])[-1], best_of["n"]
    chosen = []
    for group, marked in zip(groups, scored, strict=True):
        values = [-math.inf if v is None else v for v in marked.columns[name]]
        chosen.append(
            group.take([max(range(i, i + n), key=values.__getitem__) for i in range(0, len(values), n)])
        )
    return chosen
