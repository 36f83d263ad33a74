"""Rollout `conjugate`: the prompt is rewritten, and the answer is rewritten back."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace

from ratchet.components.inference.answers import encoded_anew
from ratchet.components.piece import piece
from ratchet.components.pieces.rollouts.sample import sample
from ratchet.components.recipes.ranges import Count, Natural, PositiveShare, Temperature
from ratchet.components.types import Context, Group, Message, Prompt, Trajectory


@piece(paper="arXiv:2309.10105")
def conjugate(
    prompts: Sequence[Prompt],
    ctx: Context,
    *,
    words: Mapping[str, str],
    responses_per_prompt: Count = 1,
    max_tokens: Count = 128,
    temperature: Temperature = 1.0,
    top_p: PositiveShare = 1.0,
    top_k: Natural = 0,
) -> list[Group]:
    """Conjugate prompting (Kotha et al., section 4): s(prompt) is answered, and the answer is s^-1 of that. s
    replaces whole words by `words`, which must not map two words to one. The new prompt needs the same
    ability, but is unlike the prompts of the last training. Tokens and mask are those of the rewritten answer
    after the original prompt, without log-probs.
    """
    back = {value: key for key, value in words.items()}
    if len(back) < len(words):
        raise ValueError("conjugate: two words have the same replacement, so that none leads back")
    asked = [
        replace(
            prompt,
            messages=tuple(
                Message(role=m["role"], content=rewrite(m["content"], words)) for m in prompt.messages
            ),
        )
        for prompt in prompts
    ]
    given = {"max_tokens": max_tokens, "temperature": temperature, "top_p": top_p, "top_k": top_k}
    found = sample(asked, ctx, responses_per_prompt=responses_per_prompt, **given)
    engine = ctx.models["policy"]
    return [
        encoded_anew(engine, Group(prompt, tuple(_answer(t, back) for t in group.trajectories)))
        for prompt, group in zip(prompts, found, strict=True)
    ]


def _answer(trajectory: Trajectory, back: Mapping[str, str]) -> Trajectory:
    *before, last = trajectory.messages
    last = Message(role=last["role"], content=rewrite(last["content"], back))
    return replace(trajectory, messages=(*before, last))


def rewrite(text: str, words: Mapping[str, str]) -> str:
    """The text with whole words replaced.

    >>> rewrite("Compare 3 and 14.", {"3": "three", "1": "one"})
    'Compare three and 14.'
    """
    return re.sub(r"\w+", lambda word: words.get(word[0], word[0]), text)
