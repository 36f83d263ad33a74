"""Stage `merge`: the weighted mean of the parameters of several models."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ratchet.components.errors import ContractError
from ratchet.components.stages.job import Job


def merge(job: Job) -> dict[str, Any]:
    """Save the model whose parameters are sum_m w_m theta_m, with the tokenizer of the first model. Weights
    1 - a and a of two models are the point a on the line between them (WiSE-FT, arXiv 2109.01903, equation
    1). `ContractError` for models with other parameters.
    """
    from ratchet.components.models.load import load_model, load_tokenizer, save_model

    weights: Mapping[str, float] = job.options["weights"]
    first = next(iter(weights))
    model = load_model(job.path(first), "policy")
    states = {name: load_model(job.path(name), "policy").state_dict() for name in weights}
    model.load_state_dict(mean_state(states, weights))
    save_model(model.eval(), load_tokenizer(job.path(first)), job.work.product)
    return {"weights": dict(weights)}


def mean_state(states: Mapping[str, Mapping[str, Any]], weights: Mapping[str, float]) -> dict[str, Any]:
    """Weighted mean of the parameters by name, added in float32, in the first model's precision. Buffers of
    whole numbers are the first model's.
    """
    first, *others = states
    shapes = {
        name: {key: tuple(value.shape) for key, value in state.items()} for name, state in states.items()
    }
    if different := next((name for name in others if shapes[name] != shapes[first]), None):
        raise ContractError(
            f"the models {first!r} and {different!r} have different parameters, so there is no mean of them; "
            "merge models that were trained from one model"
        )
    return {
        key: sum(weights[name] * states[name][key].float() for name in states).to(value.dtype)  # pyright: ignore[reportAttributeAccessIssue]
        if value.is_floating_point()
        else value
        for key, value in states[first].items()
    }
