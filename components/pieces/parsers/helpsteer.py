"""Parser of HelpSteer and HelpSteer2."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from ratchet.components.data.messages import message, reply_of, score_of, text_of
from ratchet.components.data.records import Conversation
from ratchet.components.piece import piece

TURN = re.compile(r"\n?<extra_id_1>(User|Assistant)\n")


@piece(reads=("prompt", "response", "helpfulness"), writes=("reply", "rating"), paper="arXiv:2406.08673")
def helpsteer(row: Mapping[str, Any], *, score: str = "helpfulness") -> list[Conversation]:
    """`prompt` (earlier turns marked by `<extra_id_1>`) and `response`, rated 0 to 4 by `score` (helpfulness,
    correctness, ...). Answers to one prompt with different ratings become pairs.
    """
    first, *turns = TURN.split(text_of(row["prompt"]))
    prompt = (
        message("user", first),
        *(message(name.lower(), text) for name, text in zip(turns[::2], turns[1::2], strict=True)),
    )
    prompt = prompt[:-1] if prompt[-1] == message("assistant", "") else prompt
    return [
        Conversation(
            "",
            (*prompt, *reply_of(row["response"])),
            opening=len(prompt),
            rating=score_of(score, row[score]),
        )
    ]
