"""Parser of UltraFeedback."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ratchet.components.data.messages import message, reply_of, score_of, text_of
from ratchet.components.data.records import Conversation
from ratchet.components.piece import piece
from ratchet.components.recipes.ranges import Count


@piece(reads=("instruction", "completions"), writes=("reply", "rejected"), paper="arXiv:2310.01377")
def ultrafeedback(
    row: Mapping[str, Any], *, score: str = "overall_score", pairs: Count = 1
) -> list[Conversation]:
    """`instruction` and `completions`, each with `response` and a `score`: the best one is paired with the
    `pairs` worst that are rated lower.
    """
    prompt = (message("user", text_of(row["instruction"])),)
    for one in row["completions"]:
        if not isinstance(one, Mapping):
            raise ValueError(
                f"completions: expected objects with `response` and `{score}`, got {str(one)[:80]}"
            )
    scored = [(score_of(score, one.get(score)), one["response"]) for one in row["completions"]]
    rated = sorted(((value, answer) for value, answer in scored if value is not None), key=lambda one: one[0])
    if not rated:
        raise ValueError(f"no completion has a value for {score!r}")
    best, answer = max(rated, key=lambda one: one[0])
    worse = [one for one in rated if one[0] < best][:pairs]
    if not worse:
        raise ValueError("no completion is rated lower than another")
    return [
        Conversation(
            "",
            (*prompt, *reply_of(answer)),
            opening=1,
            rejected=(*prompt, *reply_of(other)),
            meta={"margin": best - low},
        )
        for low, other in worse
    ]
