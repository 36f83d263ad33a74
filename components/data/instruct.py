"""One verifiable instruction after each question: the task of IFEval, with instructions held out for evaluation."""

from __future__ import annotations

import hashlib
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from components.data.records import Conversation, CountTokens, Dropped, Sifted
from components.errors import RecipeError
from components.piece import piece
from components.rewards.instructions import FAMILIES, instruction_text
from components.types import Message

TRAINED = tuple(name for name, family in FAMILIES.items() if not family.held_out)
HELD_OUT = tuple(name for name, family in FAMILIES.items() if family.held_out)


@piece(paper="arXiv:2311.07911")
def instruct(records: Sequence[Conversation], count_tokens: CountTokens, *, held_out: float = 0.0,
             per_question: int = 1, seed: int = 0) -> Sifted:
    """Append one instruction of `rewards.instructions` to the last user message and keep it as `meta["instruction"]`.

    `held_out` is the share of out-of-distribution instructions: half of it from held-out families, half held-out
    wordings of the trained ones; all others are trained families in trained wordings. `per_question` above 1 makes that
    many records of a question, `<id>-1` and on, with different families and one `meta["question"]`. The instructions
    follow from `seed` and the record's id alone, evenly over the families. The question takes the place of a missing
    topic, so that its records stay in one split. Raises `RecipeError` for options out of range.
    """
    if not 0 <= held_out <= 1:
        raise RecipeError(f"instruct: 'held_out' is a share from 0 to 1, got {held_out}")
    if not 1 <= per_question <= len(HELD_OUT):
        raise RecipeError(f"instruct: 'per_question' is a number from 1 to {len(HELD_OUT)}, got {per_question}")
    kept: list[Conversation] = []
    dropped: list[Dropped] = []
    kinds: Counter[str] = Counter()
    for record in records:
        if not record.messages or record.messages[-1]["role"] != "user":
            dropped.append(Dropped(record.id, "the last message is not the user's", record.as_json()))
            continue
        *before, last = record.messages
        for number, instruction in enumerate(drawn(record.id, last["content"], held_out, per_question, seed), start=1):
            kinds[f"instruction: {instruction['kind']}"] += 1
            asked: Message = {"role": "user", "content": f"{last['content'].rstrip()} {instruction['text']}"}
            kept.append(replace(
                record, id=record.id if per_question == 1 else f"{record.id}-{number}", messages=(*before, asked),
                opening=len(record.messages), topic=record.topic or last["content"],
                topic_as_system=record.topic_as_system and bool(record.topic),
                meta={"question": record.id, **record.meta, "instruction": instruction}))
    return Sifted(kept, dropped, kinds)


def drawn(key: str, question: str, held_out: float, number: int, seed: int) -> list[dict[str, Any]]:
    """`number` instructions for a question, of different families."""
    rng = random.Random(hashlib.sha256(f"{seed}/{key}".encode()).digest())
    taken: set[str] = set()
    out = []
    for _ in range(number):
        place = rng.random()
        kind = "new_family" if place < held_out / 2 else "new_wording" if place < held_out else "seen"
        name = rng.choice([f for f in (HELD_OUT if kind == "new_family" else TRAINED) if f not in taken])
        taken.add(name)
        family = FAMILIES[name]
        every = range(len(family.wordings))
        wording = rng.choice({"seen": family.seen_wordings, "new_wording": family.new_wordings}.get(kind, every))
        params = family.draw(rng, question)
        text = instruction_text(name, wording, params)
        out.append({"family": name, "wording": wording, "params": params, "text": text, "kind": kind})
    return out
