"""Stage `curate`: raw records to cleaned groups, one Parquet file per split."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Mapping
from typing import Any

from ratchet.components.data import curate as curation
from ratchet.components.data.groups import read_groups
from ratchet.components.data.statistics import kind_of
from ratchet.components.data.verifiers import check_gold
from ratchet.components.models.load import load_tokenizer
from ratchet.components.recipes.splits import PROMPT_SECTIONS
from ratchet.components.stages.job import Job
from ratchet.components.text.chat import count_tokens


def curate(job: Job) -> dict[str, Any]:
    """Apply the recipe's `data` section, with lengths in tokens of the policy."""
    tokenizer = load_tokenizer(job.path("policy"))
    section, raw = job.options["section"], {p.name.partition(".")[0]: p for p in job.path("raw").iterdir()}
    sources = [raw[f"source_{i}"] for i in range(len(section.get("sources", ())))] or [raw["source"]]
    summary = curation.curate(
        section,
        sources,
        functools.partial(count_tokens, tokenizer),
        job.work.product,
        section["seed"],
        job.options.get("read", ()),
    )
    prompts = [
        group
        for name in summary["splits"]
        if kind_of(name) in PROMPT_SECTIONS
        for group in read_groups(job.work.product / f"{name}.parquet")
    ]
    gold = check_gold(prompts, job.options.get("verifiers", ()))
    return {
        "counts": counted(summary),
        "warnings": summary["warnings"],
        **({"headline": text} if (text := origins(summary)) else {}),
        "summary": summary,
        "gold": gold,
    }


def origins(summary: Mapping[str, Any]) -> str:
    """One line: published split behind each split, records per source, and the number of contaminated
    records; empty if there is none of it.
    """
    homes: dict[str, list[str]] = {}
    for name, split in summary["splits"].items():
        homes.setdefault(split.get("published", ""), []).append(name)
    parts = [f"{', '.join(names)} from the published {home}" for home, names in homes.items() if home]
    parts += [
        f"{source['records']:,} records of {label}" for label, source in summary.get("sources", {}).items()
    ]
    contaminated = sum(
        sum(step["dropped"].values()) for step in summary["steps"] if step["step"] == "decontaminate"
    )
    return "; ".join([*parts, *([f"{contaminated:,} contaminated records left out"] if contaminated else [])])


def counted(summary: Mapping[str, Any]) -> dict[str, int]:
    """Counts for the summary: records read, groups made (by source and by published split), and records
    dropped or changed, by step and reason. The builders of all splits count as one step.
    """
    counts = Counter(
        {
            "records": summary["steps"][0]["in"],
            "groups": sum(split["groups"] for split in summary["splits"].values()),
        }
    )
    counts.update(
        {
            f"groups of {name} from the published {split['published']}": split["groups"]
            for name, split in summary["splits"].items()
            if "published" in split
        }
    )
    counts.update(
        {
            f"groups of {label}": sum(source["groups"].values())
            for label, source in summary.get("sources", {}).items()
        }
    )
    for step in summary["steps"]:
        for reason, number in [*step["dropped"].items(), *step["changed"].items()]:
            counts[f"{step['step'].split()[0]}: {reason}"] += number
    return dict(counts)
