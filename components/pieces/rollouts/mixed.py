"""Rollout `mixed`: several answers to each prompt from a mixture of models."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from ratchet.components.piece import piece
from ratchet.components.pieces.rollouts.sample import sample
from ratchet.components.recipes.ranges import Count, Finite, Natural, PositiveShare, Share, Temperature
from ratchet.components.types import Context, Group, Prompt


@piece(writes=("logprobs.sampled",), models=("{weights}",), paper="arXiv:2310.12962")
def mixed(
    prompts: Sequence[Prompt],
    ctx: Context,
    *,
    weights: Mapping[str, Finite],
    nucleus: PositiveShare = 1.0,
    own: Share = 0.0,
    responses_per_prompt: Count = 4,
    max_tokens: Count = 128,
    temperature: Temperature = 1.0,
    top_p: PositiveShare = 1.0,
    top_k: Natural = 0,
) -> list[Group]:
    """Answers with log p(token) proportional to the sum of `weights[m]` log p_m over models m: {base: 1,
    tuned: 1, untuned: -1} emulates fine-tuning of `base` (section 3 of the paper), {policy: 1 - b, reference:
    b} is the opponent of Nash-MD (arXiv 2312.00886). With `nucleus`, only tokens in the smallest set of the
    first model's likeliest ones with this probability are sampled.

    `own`: share of the answers, rounded, that the policy gives alone, before the mixture's; their actor is
    `policy`, that of the others `mixture`. `logprobs` are the actor's, so importance ratios to it are exact.
    Random numbers are those of `sample`; for both actors they are independent.
    """
    from ratchet.components.inference.mixed import MixedEngine

    given: dict[str, Any] = {
        "max_tokens": max_tokens,
        "temperature": temperature,
        "top_p": top_p,
        "top_k": top_k,
    }
    first = round(own * responses_per_prompt)
    found = [Group(prompt, ()) for prompt in prompts]
    if first:
        found = sample(prompts, ctx, responses_per_prompt=first, **given)
    if first < responses_per_prompt:
        engine = MixedEngine(ctx.models, weights, nucleus=(next(iter(weights)), nucleus))
        # The opponents' seeds are those of another run, or they would repeat the policy's random numbers.
        other = replace(ctx, models={"policy": engine}, seed=ctx.seed + (1 << 32 if first else 0))
        others = sample(prompts, other, responses_per_prompt=responses_per_prompt - first, **given)
        found = [
            Group(
                own_ones.prompt,
                (*own_ones.trajectories, *(replace(t, actor="mixture") for t in group.trajectories)),
            )
            for own_ones, group in zip(found, others, strict=True)
        ]
    return found
