"""Stages `make_tiny`, `make_tiny_vision`: the tiny language model and the tiny vision-language model, trained
from scratch once and stored like any other artifact. Stage `make_new`: an untrained model of another family.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from ratchet.components.errors import RecipeError
from ratchet.components.recipes.families import new_family
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


def make_new(job: Job) -> dict[str, Any]:
    """`generate:gaussian?observation=3&action=1&seed=0`: a model of a family with random weights."""
    from ratchet.components.models.families import new_model, save_family

    found = new_family(job.options["source"])
    if found is None:
        raise RecipeError(
            "models: format `new` goes with a source like generate:gaussian?observation=3&action=1, got "
            f"{job.options['source']!r}"
        )
    spec, seed = found
    model = new_model(spec, seed=seed)
    save_family(model, job.work.product)
    return {"source": job.options["source"], "parameters": sum(p.numel() for p in model.parameters())}


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
