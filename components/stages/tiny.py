"""Stages `make_tiny`, `make_tiny_vision`: the tiny language model and the tiny vision-language model, trained
from scratch once and stored like any other artifact.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from ratchet.components.errors import RecipeError
from ratchet.components.stages.job import Job


def make_tiny(job: Job) -> dict[str, Any]:
    """`generate:tiny?seed=0&steps=160`: about a minute on one thread; deterministic on machines of the same
    kind.
    """
    from ratchet.components.models.tiny import train_tiny

    return _made(job, "tiny", train_tiny)


def make_tiny_vision(job: Job) -> dict[str, Any]:
    """`generate:tiny_vision?seed=0`: as `make_tiny`."""
    from ratchet.components.models.tiny_vision import train_tiny_vision

    return _made(job, "tiny_vision", train_tiny_vision)


def _made(job: Job, name: str, train: Callable[..., dict[str, float]]) -> dict[str, Any]:
    import torch

    address = urlsplit(job.options["source"])
    if address.scheme != "generate" or address.path != name:
        raise RecipeError(
            f"models: format `tiny` goes with a source like generate:{name}?seed=0, got "
            f"{job.options['source']!r}"
        )
    torch.set_num_threads(1)  # weights must not depend on the number of cores
    return {
        "source": job.options["source"],
        **train(job.work.product, **{k: int(v) for k, v in parse_qsl(address.query)}),
    }
