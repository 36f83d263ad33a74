"""Stage `demonstrate`: data sets for later phases, from a model's own answers or from existing groups."""

from __future__ import annotations

import functools
import json
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from ratchet.components.data.curation_report import pair_report
from ratchet.components.data.groups import read_groups, write_groups
from ratchet.components.data.parquet import save_table
from ratchet.components.data.statistics import statistics
from ratchet.components.models.load import load_tokenizer
from ratchet.components.piece import build
from ratchet.components.stages import progress
from ratchet.components.stages.experience import context_of
from ratchet.components.stages.job import Job
from ratchet.components.text.chat import count_tokens
from ratchet.components.training.loop import annotate_groups, pieces, select_groups, texts_read, tokenised
from ratchet.components.types import Group


def demonstrate(job: Job) -> dict[str, Any]:
    """Sample (or read groups), annotate and select, on training and validation prompts. Writes the answers,
    `answers.parquet`, and one file for each of `sets`, such as `sft.parquet` and `reward.parquet`, all also
    with the suffix `_validation`, and statistics for validation.
    """
    options, product = job.options, job.work.product
    context = context_of(job)
    wanted = {
        end: [name for name in options["sets"] if f"{name}{end}" not in options["unread"]]
        for end, split in (("", options["data"]), ("_validation", options["validation"]))
        if split
    }
    splits = {end: _read(job, end) for end, sets in wanted.items() if sets}
    sampling = options["rollout"] or {}
    answers = (
        sampling.get("responses_per_prompt", 1) * sum(map(len, splits.values()))
        if sampling
        else sum(len(group.trajectories) for members in splits.values() for group in members)
    )
    progress.expect("answers", answers * (bool(sampling) + texts_read(options["annotate"])))
    annotate = pieces("annotate", options["annotate"])
    counts: Counter[str] = Counter()
    made: dict[str, Sequence[Group]] = {}
    for end, members in splits.items():
        if sampling:
            members = build("rollout", sampling)([group.prompt for group in members], context)
        scored, found = annotate_groups(members, annotate, context, max_failed=options["max_failed"])
        counts.update({f"{key}{end}": number for key, number in found.items()})
        write_groups(product / f"answers{end}.parquet", scored)
        for name in wanted[end]:
            with progress.uncounted():  # a selector may run the verifier again
                chosen, found = select_groups(scored, pieces("select", options["sets"][name]), context)
            counts.update({f"{name}{end}: {key}": number for key, number in found.items()})
            made[f"{name}{end}"] = chosen
    for name, groups in made.items():
        write_groups(product / f"{name}.parquet", groups)
    save_table(_statistics(job, made), product / "statistics.parquet")
    summary = {
        "pairs": {
            name: pair_report(groups) for name, groups in made.items() if groups and name.startswith("reward")
        },
        "splits": {name: {"groups": len(groups)} for name, groups in made.items()},
    }
    (product / "summary.json").write_text(json.dumps(summary, indent=1) + "\n")
    return {"counts": dict(counts), "summary": summary}


def _read(job: Job, end: str) -> Sequence[Group]:
    """The groups of `data` or `validation`; tokenised if they are not answered anew."""
    option, source = ("validation", "validation_data") if end else ("data", "data")
    folder = job.path(source if source in job.inputs else "data")
    groups = read_groups(folder / f"{job.options[option]}.parquet")
    return groups if job.options["rollout"] else tokenised(groups, load_tokenizer(job.path("policy")))


def _statistics(job: Job, made: dict[str, Sequence[Group]]) -> pa.Table:
    """One row per group, as for curated splits. Data sets of one stage share prompts by design, so leaks are
    checked only between training and validation of the same one.
    """
    count = functools.partial(count_tokens, load_tokenizer(job.path("policy")))
    tables = []
    for kind in job.options["sets"]:
        own = {name: groups for name, groups in made.items() if name.removesuffix("_validation") == kind}
        if own:
            tables.append(statistics(own, count, {}))
    return pa.concat_tables(tables)
