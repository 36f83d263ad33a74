"""Transform `instruct`: appends a verifiable instruction (IFEval) to each question, with instructions held
out for evaluation.
"""

from __future__ import annotations

import hashlib
import random
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from ratchet.components.data.instructions.families import FAMILIES, instruction_text
from ratchet.components.data.records import Conversation, CountTokens, FilterResult, Rejected
from ratchet.components.errors import RecipeError
from ratchet.components.piece import piece
from ratchet.components.recipes.ranges import Count, Natural, Share
from ratchet.components.types import Message

TRAINED = tuple(name for name, family in FAMILIES.items() if not family.held_out)
HELD_OUT = tuple(name for name, family in FAMILIES.items() if family.held_out)


@piece(paper="arXiv:2311.07911")
def instruct(
    records: Sequence[Conversation],
    count_tokens: CountTokens,
    *,
    held_out: Share = 0.0,
    per_question: Count = 1,
    seed: Natural = 0,
) -> FilterResult:
    """Append one instruction of `rewards.instructions` to the last user message; it is stored as
    `meta["instruction"]`.

    `held_out`: share of out-of-distribution instructions, half from held-out families, half in held-out
    wordings of trained families; all others are trained families in trained wordings. `per_question` > 1
    makes that many records per question, `<id>-1` etc., with different families and one `meta["question"]`.
    Families are balanced (drawn without replacement until all were used), in an order determined by `seed`
    and record ids, independent of record order. The question becomes the topic if there is none, so that its
    records stay in one split. `RecipeError` for options out of range.
    """
    if not 0 <= held_out <= 1:
        raise RecipeError(f"instruct: 'held_out' must be a share from 0 to 1, got {held_out}")
    if not 1 <= per_question <= len(HELD_OUT):
        raise RecipeError(
            f"instruct: 'per_question' must be a number from 1 to {len(HELD_OUT)}, got {per_question}"
        )
    questioned = [record for record in records if record.messages and record.messages[-1]["role"] == "user"]
    questions = {record.id: record.messages[-1]["content"] for record in questioned}
    instructions = drawn(questions, held_out, per_question, seed)
    kinds: Counter[str] = Counter()
    kept: list[Conversation] = []
    for record in questioned:
        *before, last = record.messages
        for number, instruction in enumerate(instructions[record.id], start=1):
            kinds[f"instruction: {instruction['kind']}"] += 1
            question: Message = {
                "role": "user",
                "content": f"{last['content'].rstrip()} {instruction['text']}",
            }
            kept.append(
                replace(
                    record,
                    id=record.id if per_question == 1 else f"{record.id}-{number}",
                    messages=(*before, question),
                    opening=len(record.messages),
                    topic=record.topic or last["content"],
                    topic_as_system=record.topic_as_system and bool(record.topic),
                    meta={"question": record.id, **record.meta, "instruction": instruction},
                )
            )
    dropped = [
        Rejected(record.id, "the last message is not the user's", record.as_json())
        for record in records
        if not (record.messages and record.messages[-1]["role"] == "user")
    ]
    return FilterResult(kept, dropped, kinds)


def drawn(
    questions: Mapping[str, str], held_out: float, number: int, seed: int
) -> dict[str, list[dict[str, Any]]]:
    """`number` instructions for each question (id -> text), of different families."""
    decks: dict[str, list[str]] = {"new_family": [], "new_wording": [], "seen": []}
    rng_families = random.Random(seed)
    out: dict[str, list[dict[str, Any]]] = {}
    for key in sorted(questions, key=lambda key: hashlib.sha256(f"{seed}/{key}".encode()).digest()):
        rng = random.Random(hashlib.sha256(f"{seed}/{key}".encode()).digest())
        out[key], taken = [], set[str]()
        for _ in range(number):
            place = rng.random()
            kind = "new_family" if place < held_out / 2 else "new_wording" if place < held_out else "seen"
            name = _next_family(
                decks[kind], HELD_OUT if kind == "new_family" else TRAINED, taken, rng_families
            )
            taken.add(name)
            family = FAMILIES[name]
            wording = rng.choice(
                {"seen": family.seen_wordings, "new_wording": family.new_wordings}.get(
                    kind, range(len(family.wordings))
                )
            )
            params = family.draw(rng, questions[key])
            text = instruction_text(name, wording, params)
            out[key].append(
                {"family": name, "wording": wording, "params": params, "text": text, "kind": kind}
            )
    return out


def _next_family(
    deck: list[str], families: Sequence[str], taken: set[str], rng_families: random.Random
) -> str:
    """The first family in `deck` that is not in `taken`; a deck without one is extended by a new permutation
    of all families.
    """
    if not set(deck) - taken:
        deck += rng_families.sample(families, len(families))
    name = next(name for name in deck if name not in taken)
    deck.remove(name)
    return name
