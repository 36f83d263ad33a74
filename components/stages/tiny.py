"""Stage `make_tiny`: the tiny language model, trained from scratch once and stored like any other
artifact.
"""

from __future__ import annotations

from typing import Any
from urllib.parse import parse_qsl, urlsplit

from ratchet.components.errors import RecipeError
from ratchet.components.models.tiny import train_tiny
from ratchet.components.stages.job import Job


def make_tiny(job: Job) -> dict[str, Any]:
    """`generate:tiny?seed=0&steps=160`: about a minute on one thread; deterministic on machines of the same
    kind.
    """
    import torch

    address = urlsplit(job.options["source"])
    if address.scheme != "generate" or address.path != "tiny":
        raise RecipeError(
            "models: format `tiny` goes with a source like generate:tiny?seed=0, got "
            f"{job.options['source']!r}"
        )
    torch.set_num_threads(1)  # weights must not depend on the number of cores
    return {
        "source": job.options["source"],
        **train_tiny(job.work.product, **{k: int(v) for k, v in parse_qsl(address.query)}),
    }
