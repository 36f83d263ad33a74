"""Rollout `in_context`: answers after constant examples in the prompt."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace

from ratchet.components.data.messages import with_system
from ratchet.components.piece import piece
from ratchet.components.pieces.rollouts.sample import sample
from ratchet.components.recipes.ranges import Count, Natural, PositiveShare, Temperature
from ratchet.components.types import Context, Group, Message, Prompt


@piece(writes=("logprobs.sampled",), paper="arXiv:2312.01552")
def in_context(
    prompts: Sequence[Prompt],
    ctx: Context,
    *,
    examples: Sequence[Sequence[str]],
    preamble: str = "",
    responses_per_prompt: Count = 1,
    max_tokens: Count = 128,
    temperature: Temperature = 1.0,
    top_p: PositiveShare = 1.0,
    top_k: Natural = 0,
) -> list[Group]:
    """In-context alignment (URIAL): the same `examples` (pairs of a question and an answer in the wanted
    style) come before every prompt as earlier turns, and `preamble` as a system message, with which the
    prompt's own is joined; no weights change. Tokens and log-probs are those of the longer prompt.
    """
    turns: list[Message] = []
    for example in examples:
        if len(example) != 2:
            raise ValueError(f"in_context: expected pairs of a question and an answer, got {list(example)}")
        turns += [Message(role="user", content=example[0]), Message(role="assistant", content=example[1])]
    asked = []
    for prompt in prompts:
        own = sum(1 for _ in itertools.takewhile(lambda m: m["role"] == "system", prompt.messages))
        messages = (*prompt.messages[:own], *turns, *prompt.messages[own:])
        asked.append(replace(prompt, messages=with_system(messages, preamble)))
    given = {"max_tokens": max_tokens, "temperature": temperature, "top_p": top_p, "top_k": top_k}
    found = sample(asked, ctx, responses_per_prompt=responses_per_prompt, **given)
    return [Group(prompt, group.trajectories) for prompt, group in zip(prompts, found, strict=True)]
