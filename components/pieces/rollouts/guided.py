"""Rollout `guided`: answers that a guide model and the policy write in turn."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from ratchet.components.inference.answers import trajectory
from ratchet.components.piece import piece
from ratchet.components.pieces.rollouts.sample import prompt_seed, sample
from ratchet.components.recipes.ranges import Count, Natural, Share
from ratchet.components.types import Context, Group, Prompt, Request, Sample, Trajectory

if TYPE_CHECKING:
    from ratchet.components.protocols import Engine


@piece(writes=("logprobs.sampled",), models=("{guide}",), paper="arXiv:2306.11816")
def guided(
    prompts: Sequence[Prompt],
    ctx: Context,
    *,
    guide: str,
    share: Share = 0.6,
    roll_in: Share = 1.0,
    roll_out_rounds: Natural = 0,
    responses_per_prompt: Count = 4,
    max_tokens: Count = 128,
) -> list[Group]:
    """RLGF: a `share` of the prompts are answered with the model `guide`, the others by the policy alone. The
    loss mask is True on the policy's tokens only, whose log-probs are the policy's.

    In a round of *guide roll-in* (PPO++) the guide begins: its answer is cut at a uniform length from 1 to
    all but one token, and the policy ends it. All answers to a prompt share the beginning, so that the
    baseline of a group compares completions of one state; the paper draws a beginning for every answer and
    learns a critic. In a round of *guide roll-out* (AggreVaTeD) the policy begins, every answer is cut at its
    own length, and the guide ends it: the reward estimates the guide's value of the policy's tokens.

    Rounds up to `roll_out_rounds` are of guide roll-out (D2LOLS), later ones with probability 1 - `roll_in`
    (LOLS). Answers of one token are not cut. `share` 0.6 is the paper's for PPO++, 0.8 for the others.
    """
    begins = (
        ctx.round > roll_out_rounds and random.Random(f"{ctx.seed}/{ctx.round}/roll in").random() < roll_in
    )
    other = replace(ctx, models={"policy": ctx.models[guide]}, seed=ctx.seed + (1 << 32))
    helped = [random.Random(f"{prompt_seed(ctx, p)}/helped").random() < share for p in prompts]
    first = (
        sample(prompts, other, responses_per_prompt=1, max_tokens=max_tokens)
        if begins
        else sample(prompts, ctx, responses_per_prompt=responses_per_prompt, max_tokens=max_tokens)
    )
    cuts = [
        [_cut(answer, ctx, group.prompt, i) if guides else 0 for i, answer in enumerate(group.trajectories)]
        for group, guides in zip(first, helped, strict=True)
    ]
    without = [group.prompt for group, row in zip(first, cuts, strict=True) if not any(row)] if begins else []
    alone = iter(sample(without, ctx, responses_per_prompt=responses_per_prompt, max_tokens=max_tokens))
    requests = [
        Request(
            _beginning(answer, cut),
            count=responses_per_prompt if begins else 1,
            max_tokens=max_tokens - cut,
            seed=prompt_seed(replace(ctx, seed=ctx.seed + ((i + 2) << 32)), group.prompt),
        )
        for group, row in zip(first, cuts, strict=True)
        for i, (answer, cut) in enumerate(zip(group.trajectories, row, strict=True))
        if cut
    ]
    second = ctx.models["policy" if begins else guide]
    ends = iter(second.generate(requests) if requests else [])
    policy, groups = ctx.models["policy"], []
    for group, row in zip(first, cuts, strict=True):
        joined = [
            [_joined(answer, cut, end, policy, begins) for end in next(ends)] if cut else [answer]
            for answer, cut in zip(group.trajectories, row, strict=True)
        ]
        if begins and not any(row):
            groups.append(next(alone))
        else:
            groups.append(group.replace([answer for answers in joined for answer in answers]))
    return groups


def _cut(answer: Trajectory, ctx: Context, prompt: Prompt, i: int) -> int:
    """Number of tokens kept of answer `i`, uniform from 1 to all but one; 0 for an answer of one token."""
    length = sum(answer.mask)
    return random.Random(f"{prompt_seed(ctx, prompt)}/cut/{i}").randrange(1, length) if length > 1 else 0


def _beginning(answer: Trajectory, cut: int) -> list[int]:
    """Tokens of the prompt and of the first `cut` tokens of the answer."""
    return list(answer.inputs["tokens"])[: len(answer.mask) - sum(answer.mask) + cut]


def _joined(answer: Trajectory, cut: int, end: Sample, policy: Engine, begins: bool) -> Trajectory:
    """The first `cut` tokens of `answer`, then `end`; the loss mask is True on the policy's part: the end if
    the guide begins.
    """
    start = _beginning(answer, 0)
    kept, given = _beginning(answer, cut)[len(start) :], list(answer.logprobs or ())[len(start) :][:cut]
    logprobs = [*([0.0] * cut if begins else given), *(end.logprobs if begins else [0.0] * len(end.tokens))]
    whole = Sample((*kept, *end.tokens), tuple(logprobs), end.stop)
    joined = trajectory(Request(start), whole, policy.decode(whole.tokens), policy.weights, dict(answer.meta))
    steps = range(len(start) + cut, len(joined.mask)) if begins else range(len(start), len(start) + cut)
    return replace(joined, mask=[t in steps for t in range(len(joined.mask))])
