"""Raw records to checked groups, one Parquet file a split."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Mapping
from typing import Any

from components.chat import count_tokens
from components.data import curate as curation
from components.data.groups import read_groups
from components.data.statistics import kind_of
from components.data.verifiers import check_gold
from components.errors import RatchetError
from components.models.load import load_tokenizer
from components.run import Job
from components.sections import PROMPT_SECTIONS


def curate(job: Job) -> dict[str, Any]:
    """The `data` section of the recipe, with lengths counted in tokens of the policy."""
    tokenizer = load_tokenizer(job.path("policy"))
    source = next(p for p in sorted(job.path("raw").iterdir()) if p.stem == "source")
    section = job.options["section"]
    try:
        summary = curation.curate(section, source, functools.partial(count_tokens, tokenizer), job.work.product, section["seed"])
    except RatchetError as error:  # about the user's file, not about our copy of it
        raise type(error)(str(error).replace(str(source), section["source"])) from error
    prompts = [group for name in summary["splits"] if kind_of(name) in PROMPT_SECTIONS for group in read_groups(job.work.product / f"{name}.parquet")]
    gold = check_gold(prompts, job.options.get("verifiers", ()))
    return {"counts": counted(summary), "summary": summary, "gold": gold}


def counted(summary: Mapping[str, Any]) -> dict[str, int]:
    """Records read, groups made, and what the steps dropped or changed by reason; the builders of all splits count as one step."""
    counts = Counter({"records": summary["steps"][0]["in"], "groups": sum(split["groups"] for split in summary["splits"].values())})
    for step in summary["steps"]:
        for reason, number in [*step["dropped"].items(), *step["changed"].items()]:
            counts[f"{step['step'].split()[0]}: {reason}"] += number
    return dict(counts)
