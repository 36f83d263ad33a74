"""Rollout `sample`: several answers to each prompt from the current policy."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from ratchet.components.inference.answers import trajectory
from ratchet.components.piece import piece
from ratchet.components.recipes.ranges import Count, Natural, PositiveShare, Temperature
from ratchet.components.text.images import images_of
from ratchet.components.types import Context, Group, Prompt, Request


@piece(writes=("logprobs.sampled",), paper="arXiv:2405.07863")
def sample(
    prompts: Sequence[Prompt],
    ctx: Context,
    *,
    responses_per_prompt: Count = 4,
    max_tokens: Count = 128,
    temperature: Temperature = 1.0,
    top_p: PositiveShare = 1.0,
    top_k: Natural = 0,
) -> list[Group]:
    """Groups of `responses_per_prompt` answers. The loss mask is True on the answer, including its stop
    token; `logprobs` are the sampler's. Sampling settings are recorded in each trajectory's meta.

    Random numbers depend on seed, round and prompt id only, so order and batching do not change answers.
    """
    engine = ctx.models["policy"]
    encoded = [list(engine.encode_prompt(prompt)) for prompt in prompts]
    requests = [
        Request(
            tokens,
            count=responses_per_prompt,
            max_tokens=max_tokens,
            temperature=temperature,
            top_p=top_p,
            top_k=top_k,
            seed=prompt_seed(ctx, prompt),
            images=images_of(prompt),
        )
        for prompt, tokens in zip(prompts, encoded, strict=True)
    ]
    groups = []
    for prompt, request, answers in zip(prompts, requests, engine.generate(requests), strict=True):
        meta = {
            "seed": request.seed,
            "round": ctx.round,
            "temperature": temperature,
            "top_p": top_p,
            "top_k": top_k,
            "max_tokens": max_tokens,
        }
        groups.append(
            Group(
                prompt,
                tuple(
                    trajectory(
                        request, answer, engine.decode(answer.tokens), engine.weights, {**meta, "sample": i}
                    )
                    for i, answer in enumerate(answers)
                ),
            )
        )
    return groups


def prompt_seed(ctx: Context, prompt: Prompt) -> int:
    """31 bits of a hash of seed, round and prompt id."""
    return int.from_bytes(hashlib.sha256(f"{ctx.seed}/{ctx.round}/{prompt.id}".encode()).digest()[:4]) >> 1
