"""Stage `demonstrate`: data sets from the base model's own answers (SFT demonstrations and preference
pairs).
"""

from __future__ import annotations

import functools
import json
from collections import Counter
from typing import Any

import pyarrow as pa

from ratchet.components.data.curate import pair_report
from ratchet.components.data.groups import read_groups, save_table, write_groups
from ratchet.components.data.statistics import statistics
from ratchet.components.models.load import load_tokenizer
from ratchet.components.piece import build
from ratchet.components.stages import progress
from ratchet.components.stages.experience import context_of
from ratchet.components.stages.job import Job
from ratchet.components.text.chat import count_tokens
from ratchet.components.training.loop import annotate_groups, pieces, select_groups, texts_read
from ratchet.components.types import Group

KINDS = ("sft", "reward")


def demonstrate(job: Job) -> dict[str, Any]:
    """Sample, annotate and select on training and validation prompts. Writes `answers.parquet`, `sft.parquet`
    and `reward.parquet`, each also with the suffix `_validation`, and statistics for validation.
    """
    options, product = job.options, job.work.product
    context = context_of(job)
    wanted = {
        end: [kind for kind in KINDS if options[kind] and f"{kind}{end}" not in options["unread"]]
        for end in ("", "_validation")
    }
    splits = {
        end: read_groups(job.path("data") / f"{options[name]}.parquet")
        for end, name in (("", "data"), ("_validation", "validation"))
        if wanted[end]
    }
    each = options["rollout"].get("responses_per_prompt", 1)
    answers = each * sum(map(len, splits.values()))
    progress.expect("answers", answers * (1 + texts_read(options["annotate"])))
    rollout, annotate = build("rollout", options["rollout"]), pieces("annotate", options["annotate"])
    counts: Counter[str] = Counter()
    made: dict[str, list[Group]] = {}
    for end, members in splits.items():
        sampled = rollout([group.prompt for group in members], context)
        scored, found = annotate_groups(sampled, annotate, context, max_failed=options["max_failed"])
        counts.update({f"{key}{end}": number for key, number in found.items()})
        write_groups(product / f"answers{end}.parquet", scored)
        for kind in wanted[end]:
            with progress.uncounted():  # a selector may run the verifier again
                made[f"{kind}{end}"], found = select_groups(scored, pieces("select", options[kind]), context)
            counts.update({f"{kind}{end}: {key}": number for key, number in found.items()})
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


def _statistics(job: Job, made: dict[str, list[Group]]) -> pa.Table:
    """One row per group, as for curated splits. Demonstrations and pairs share prompts by design, so leaks
    are checked only between training and validation of the same kind.
    """
    count = functools.partial(count_tokens, load_tokenizer(job.path("policy")))
    tables = []
    for kind in KINDS:
        own = {name: groups for name, groups in made.items() if name.removesuffix("_validation") == kind}
        if own:
            tables.append(statistics(own, count, {}))
    return pa.concat_tables(tables)
