"""Preference pairs out of scored groups: shared by the selectors that make them, no piece itself."""

from __future__ import annotations

from collections.abc import Sequence

from components.advantages.read import rewards_of
from components.types import Context, Group


def pair(group: Group, chosen: int, rejected: int, values: Sequence[float], ctx: Context, reward: str) -> Group:
    """The two trajectories, chosen first, with `margin` on both rows and the pair's origin in the prompt's meta."""
    best, worst = group.trajectories[chosen], group.trajectories[rejected]
    origin = {
        "policy": best.weights, "policy_rejected": worst.weights, "reward": reward, "judge": judge_digest(ctx, reward),
        "seed": ctx.seed, "round": ctx.round, "decoding": dict(best.meta),
        "margin": values[chosen] - values[rejected], "responses": len(group.trajectories),
    }
    made = group.take([chosen, rejected]).with_columns(margin=[origin["margin"]] * 2)
    prompt = type(group.prompt)(group.prompt.id, group.prompt.messages, group.prompt.answer, group.prompt.source,
                                {**group.prompt.meta, "pair": origin})
    return Group(prompt, made.trajectories, made.columns)


def judge_digest(ctx: Context, reward: str) -> str:
    """Weights of the model that wrote the reward; empty when a function did, or when the model is no longer at hand."""
    name = reward.removeprefix("reward.")
    return str(getattr(ctx.models[name], "weights", "")) if name in ctx.models else ""


def judged(group: Group, reward: str, length_penalty: float) -> list[float]:
    """r - length_penalty x chosen tokens."""
    return [r - length_penalty * sum(t.mask) for r, t in zip(rewards_of(group, reward), group.trajectories, strict=True)]
