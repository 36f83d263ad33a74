"""Testbed `simplify`: sentences of hard words to be written in plain ones, for text simplification."""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import product
from typing import Any

from ratchet.components.errors import DataError
from ratchet.components.piece import piece
from ratchet.components.recipes.ranges import Natural

SLOTS = (
    (("physician", "doctor"), ("adolescent", "teen"), ("infant", "baby"), ("pupil", "student"),
     ("colleague", "friend"), ("spouse", "wife"), ("attorney", "lawyer"), ("sire", "father")),
    (("purchases", "buys"), ("requires", "needs"), ("relinquishes", "gives"), ("examines", "checks"),
     ("discards", "drops"), ("retains", "keeps"), ("vends", "sells"), ("transports", "takes")),
    (("medication", "pills"), ("beverage", "drink"), ("vehicle", "car"), ("residence", "home"),
     ("document", "paper"), ("garb", "clothes"), ("apparatus", "tool"), ("tome", "book")),
    (("frequently", "often"), ("immediately", "now"), ("subsequently", "later"), ("previously", "before"),
     ("anon", "tomorrow"), ("seldom", "rarely")),
)  # fmt: skip
"""Person, verb, thing and time of a sentence: hard and plain words. Five plain words are longer."""


def sentence(choice: tuple[tuple[str, str], ...], plain: bool) -> str:
    """The sentence of four concepts in hard or in plain words."""
    person, verb, thing, time = (pair[plain] for pair in choice)
    return f"The {person} {verb} the {thing} {time}."


@piece(paper="arXiv:2401.15043")
def simplify(
    *, seed: Natural = 0, parallel: Natural = 200, unpaired: Natural = 400, size: Natural = 600
) -> Iterator[dict[str, Any]]:
    """Sentences in hard words; no two rows have the same four of the 3,072 concepts. Read the splits with
    `data.columns: {split: split}`: `parallel` rows {id, prompt, completion, meta} with the sentence in plain
    words; `size` rows {id, prompt, answer, meta} of split `unlabelled` and 200 of `test`; `unpaired` pairs
    {id, prompt, chosen, rejected} of split `classes`, and 100 of `held_out`, after prompts "Text 1:", "Text
    2:", ..., of a plain sentence and a hard one, drawn apart. `meta["concepts"]` has the pairs of words.

    Shows: whether a reward that learned from unpaired sentences, without a word of a parallel one, makes
    a policy simpler, and whether it keeps the meaning. Does not show: syntax, words of several meanings, or
    simplification for readers.
    """
    counts = {"parallel": parallel, "classes": 2 * unpaired, "held_out": 200, "unlabelled": size, "test": 200}
    every = list(product(*SLOTS))
    if sum(counts.values()) > len(every):
        raise DataError(
            f"simplify: {sum(counts.values())} sentences asked for, of {len(every)}; lower a size"
        )
    random.Random(f"simplify {seed}").shuffle(every)
    rows = iter(every)
    for split, count in counts.items():
        for number in range(count // 2 if split in ("classes", "held_out") else count):
            choice = next(rows)
            hard, plain = sentence(choice, False), sentence(choice, True)
            row: dict[str, Any] = {"id": f"simplify-{seed}-{split}-{number}", "split": split}
            if split in ("classes", "held_out"):
                number_of = 1 + number + (split == "held_out") * unpaired
                other, text = sentence(next(rows), True), f"Text {number_of}:"
                yield {**row, "prompt": _user(text), "chosen": _reply(other), "rejected": _reply(hard)}
                continue
            row |= {"prompt": _user(hard), "meta": {"concepts": [list(pair) for pair in choice]}}
            yield {**row, "completion": _reply(plain)} if split == "parallel" else {**row, "answer": plain}


def _user(text: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": text}]


def _reply(text: str) -> list[dict[str, str]]:
    return [{"role": "assistant", "content": text}]
