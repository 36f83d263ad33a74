"""Scoring pieces for log-probs under a model, lists (T) aligned with the trajectory's tokens."""

from __future__ import annotations

from collections.abc import Sequence

from ratchet.components.errors import ContractError
from ratchet.components.piece import piece
from ratchet.components.types import Column, Columns, Context, Group


def model_outputs(groups: Sequence[Group], ctx: Context, model: str, ask: str) -> list[Column]:
    """Output `ask` of `ctx.models[model]` for each trajectory, checked to have one value per token."""
    found = []
    for group, row in zip(groups, ctx.models[model].score(groups, frozenset({ask})), strict=True):
        values = list(row[ask])
        for trajectory, steps in zip(group.trajectories, values, strict=True):
            if len(steps) != len(trajectory.mask):
                raise ContractError(
                    f"prompt {group.prompt.id!r}: model {model!r} returned {len(steps)} {ask} for a "
                    "trajectory of "
                    f"{len(trajectory.mask)} tokens; it must have the policy's tokenizer"
                )
        found.append(values)
    return found


@piece(writes=("logprobs.{model}",), paper="arXiv:2305.18290", by_group=True)
def logprobs(groups: Sequence[Group], ctx: Context, *, model: str = "reference") -> Columns:
    """`logprobs.<model>`: log-probs under another model, which must share the policy's tokenizer."""
    return {f"logprobs.{model}": model_outputs(groups, ctx, model, "logprobs")}


@piece(writes=("logprobs.old",), models=("policy",), paper="arXiv:1707.06347", by_group=True)
def old(groups: Sequence[Group], ctx: Context) -> Columns:
    """`logprobs.old`: log-probs under the policy at the start of the update."""
    return {"logprobs.old": model_outputs(groups, ctx, "policy", "logprobs")}
