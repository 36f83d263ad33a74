"""Parser of preference pairs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ratchet.components.data.messages import messages_of, prompt_of, score_of, with_system
from ratchet.components.data.records import Conversation
from ratchet.components.piece import piece
from ratchet.components.types import Message


@piece(reads=("chosen", "rejected"), writes=("reply", "rejected"))
def preference(row: Mapping[str, Any]) -> list[Conversation]:
    """`chosen` and `rejected`: answers to `prompt` (text, messages or one message) or to `instruction` and
    `input`, or whole conversations with a common beginning, as messages or as one text (HH-RLHF). Optional
    `system`; `margin`, or `score_chosen` and `score_rejected`; `label_weight`, how much the pair counts (an
    objective's `weight_column`).
    """
    sides = messages_of(row["chosen"], "assistant"), messages_of(row["rejected"], "assistant")
    if all(side[0]["role"] == "assistant" for side in sides):
        prompt = prompt_of(row)
        if not prompt:
            raise ValueError("`prompt` is missing, and `chosen` and `rejected` are not whole conversations")
        sides = (*prompt, *sides[0]), (*prompt, *sides[1])
    else:
        sides = _with_system(sides[0], row.get("system")), _with_system(sides[1], row.get("system"))
    opening = next(
        (i for i, (one, other) in enumerate(zip(*sides, strict=False)) if one != other), min(map(len, sides))
    )
    if sides[0] == sides[1]:
        raise ValueError("chosen and rejected are the same")
    if opening == 0:
        raise ValueError("chosen and rejected have no common prompt")
    for name, side in zip(("chosen", "rejected"), sides, strict=True):
        if opening == len(side) or not side[-1]["content"].strip():
            raise ValueError(f"the {name} answer is empty")
        if side[opening]["role"] != "assistant":
            raise ValueError("chosen and rejected first differ in a user turn, expected an assistant turn")
    best, worst = (score_of(name, row.get(name)) for name in ("score_chosen", "score_rejected"))
    margin = score_of("margin", row.get("margin"))
    if margin is None and best is not None and worst is not None:
        margin = best - worst
    if margin is not None and margin <= 0:
        raise ValueError("the rejected answer is rated at least as high as the chosen one")
    weight = score_of("label_weight", row.get("label_weight"))
    if weight is not None and weight < 0:
        raise ValueError(f"label_weight: expected 0 or more, got {weight:g}")
    optional = {"margin": margin, "label_weight": weight}
    return [
        Conversation(
            "",
            sides[0],
            opening=opening,
            rejected=sides[1],
            meta={name: value for name, value in optional.items() if value is not None},
        )
    ]


def _with_system(conversation: tuple[Message, ...], system: Any) -> tuple[Message, ...]:
    """A conversation with the row's system message, unless it begins with that already."""
    given = conversation[0]["content"] if conversation[0]["role"] == "system" else None
    return conversation if given == system else with_system(conversation, system)
