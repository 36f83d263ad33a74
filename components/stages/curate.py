"""Raw records to checked groups, one Parquet file a split."""

from __future__ import annotations

import functools
from typing import Any

from components.chat import count_tokens
from components.data import curate as curation
from components.models.load import load_tokenizer
from components.run import Job


def curate(job: Job) -> dict[str, Any]:
    """The `data` section of the recipe, with lengths counted in tokens of the policy."""
    tokenizer = load_tokenizer(job.path("policy"))
    source = next(p for p in sorted(job.path("raw").iterdir()) if p.stem == "source")
    summary = curation.curate(job.options["section"], source, functools.partial(count_tokens, tokenizer),
                              job.work.product, job.options["section"].get("seed", 0))
    return {"summary": summary}
