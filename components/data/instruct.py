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

TRAINED = tuple(name for name, family in FAMILIES.items() if not family.held_out)
HELD_OUT = tuple(name for name, family in FAMILIES.items() if family.held_out)


@piece(paper="arXiv:2311.07911")
def instruct(records: Sequence[Conversation], count_tokens: CountTokens, *, held_out: float = 0.0, per_question: int = 1,
             seed: int = 0) -> Sifted:
    """Append one instruction of `rewards.instructions` to the last user message; `meta["instruction"]` is what was asked.

    `held_out` is the share with an instruction that training never shows: half of it held-out families, half held-out
    wordings of the others; the rest has trained families in trained wordings. `per_question` above 1 makes that many
    records of a question, `<id>-1` on, of different families and one `meta["question"]`. A record's instructions follow
    from `seed` and its id alone, drawn evenly over the families. Raises `RecipeError` for options out of range.
    """
    if not 0 <= held_out <= 1:
        raise RecipeError(f"instruct: 'held_out' is a share from 0 to 1, got {held_out}")
    if not 1 <= per_question <= len(HELD_OUT):
        raise RecipeError(f"instruct: 'per_question' must be from 1 to {len(HELD_OUT)} (the held-out families), got {per_question}")
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
            asked = {"role": "user", "content": f"{last['content'].rstrip()} {instruction['text']}"}
            kept.append(replace(
                record, id=record.id if per_question == 1 else f"{record.id}-{number}", messages=(*before, asked),  # type: ignore[arg-type]
                opening=len(record.messages), meta={"question": record.id, **record.meta, "instruction": instruction}))
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
        wording = rng.choice({"seen": family.seen_wordings, "new_wording": family.new_wordings, "new_family": every}[kind])
        params = family.draw(rng, question)
        out.append({"family": name, "wording": wording, "params": params, "text": instruction_text(name, wording, params), "kind": kind})
    return out
