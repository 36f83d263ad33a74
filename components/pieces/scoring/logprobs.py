"""Log-probs of what was said under some model, lists (T) aligned with the trajectory's tokens."""

from __future__ import annotations

from collections.abc import Sequence

from ratchet.components.errors import ContractError
from ratchet.components.piece import piece
from ratchet.components.types import Column, Columns, Context, Group


def asked(groups: Sequence[Group], ctx: Context, model: str, ask: str) -> list[Column]:
    """One answer a trajectory from `ctx.models[model]`, checked to have one number a token."""
    found = []
    for group, row in zip(groups, ctx.models[model].score(groups, frozenset({ask})), strict=True):
        values = list(row[ask])
        for trajectory, steps in zip(group.trajectories, values, strict=True):
            if len(steps) != len(trajectory.mask):
                raise ContractError(f"prompt {group.prompt.id!r}: model {model!r} gave {len(steps)} {ask} for a trajectory of "
                                    f"{len(trajectory.mask)} tokens; it must share the policy's tokenizer")
        found.append(values)
    return found


@piece(writes=("logprobs.{model}",), paper="arXiv:2305.18290")
def logprobs(groups: Sequence[Group], ctx: Context, *, model: str = "reference") -> Columns:
    """`logprobs.<model>`: the model must share the policy's tokenizer, for tokens are scored as they are."""
    return {f"logprobs.{model}": asked(groups, ctx, model, "logprobs")}


@piece(writes=("logprobs.old",), models=("policy",), paper="arXiv:1707.06347")
def old(groups: Sequence[Group], ctx: Context) -> Columns:
    """`logprobs.old`: the policy's own, as it is at the start of the update."""
    return {"logprobs.old": asked(groups, ctx, "policy", "logprobs")}
