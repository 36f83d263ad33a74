"""Rollout `offered`: the answers that the data have to a prompt, instead of the policy's."""

from __future__ import annotations

from collections.abc import Sequence

from ratchet.components.errors import DataError
from ratchet.components.piece import piece
from ratchet.components.recipes.ranges import Count
from ratchet.components.types import Context, Group, Prompt, Trajectory


@piece(paper="arXiv:2310.01377")
def offered(prompts: Sequence[Prompt], ctx: Context, *, responses_per_prompt: Count = 4) -> list[Group]:
    """The first `responses_per_prompt` texts of `meta["answers"]` of each prompt, such as those of a pool of
    models, as answers without tokens and log-probs: to be rated and selected, and learned from off policy.
    `DataError` for a prompt with fewer.
    """
    groups = []
    for prompt in prompts:
        texts = prompt.meta.get("answers")
        if not isinstance(texts, Sequence) or isinstance(texts, str) or len(texts) < responses_per_prompt:
            raise DataError(
                f"offered: prompt {prompt.id!r}: expected {responses_per_prompt} answers in meta.answers, "
                f"got {texts!r:.80}"
            )
        groups.append(
            Group(
                prompt,
                tuple(
                    Trajectory(({"role": "assistant", "content": str(text)},), meta={"sample": i})
                    for i, text in enumerate(texts[:responses_per_prompt])
                ),
            )
        )
    return groups
