"""Testbed `programs`: instructions on a number, with programs of good or bad style, right and wrong."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from itertools import product
from typing import Any

from ratchet.components.errors import DataError
from ratchet.components.piece import piece
from ratchet.components.pieces.rewards.program import OPERATIONS, PREFERENCES
from ratchet.components.recipes.ranges import Count, Natural, Share

NAMES = ("base", "half", "left", "part", "size")
RESULTS = ("answer", "name", "sum", "total")
LETTERS = "abcdefgh"
POOL = (("good", True), ("good", False), ("bad", True), ("bad", False))
"""Style of a generator, and whether its programs are right."""


def program(steps: Sequence[str], right: bool, fine: float, rng: random.Random) -> str:
    """A program of one statement a step. With probability `fine` each, independently: operators stand
    between spaces, names are words, no statement adds 0 in vain, and a comment repeats the instruction. One
    that is not `right` has another number in one step.
    """
    spaced, named, lean, explained = (rng.random() < fine for _ in range(4))
    parts = [step.split() for step in steps]
    if not right:
        slip = rng.choice(parts)
        slip[1] = rng.choice([str(n) for n in range(1, 10) if str(n) != slip[1]])
    operations = [(OPERATIONS[word], number) for word, number in parts]
    if not lean:
        operations.insert(rng.randrange(1, len(operations) + 1), ("+", "0"))
    names = (
        [*rng.sample(NAMES, len(operations) - 1), rng.choice(RESULTS)]
        if named
        else list(LETTERS[: len(operations)])
    )
    gap = " " if spaced else ""
    lines = [
        f"{name}{gap}={gap}{before}{gap}{operator}{gap}{number}"
        for name, before, (operator, number) in zip(names, ["x", *names], operations, strict=False)
    ]
    return "\n".join(lines) + (f" # {', '.join(steps)}" if explained else "")


@piece(paper="arXiv:2403.09032")
def programs(
    *,
    seed: Natural = 0,
    instructed: Natural = 390,
    demonstrations: Count = 4,
    rated: Natural = 240,
    fine: Share = 0.8,
    coarse: Share = 0.2,
) -> Iterator[dict[str, Any]]:
    """Instructions such as "x times 3, minus 4", answered by programs of one assignment a line, which
    `rewards.program` runs: 729 of two steps, each at most once. Read the splits with `data.columns: {split:
    split}`.

    `sft`, `demonstrations` rows {id, prompt, completion, meta} for each of `instructed` instructions: right
    programs, each by a generator of good or bad style at even odds; `rated`, prompts {id, prompt, meta} with
    one of five preferences in `meta["preference"]`, which the prompt does not tell, and in `meta["answers"]`
    four programs in random order, one by each generator: good or bad style, right or wrong; `test`, 96
    prompts {id, prompt, meta}. Style is four traits, each good with probability `fine` or `coarse`
    (`program`). `meta["steps"]` has the steps of the instruction.

    Shows: whether learning from ratings of one preference an instruction raises all of them, and what it
    costs in right programs, when four in five ratings say nothing about these. Does not show: programs with
    branches or loops, errors of a judge that depend on the text, or a pool of models better than the policy.
    """
    steps = [f"{word} {number}" for word in OPERATIONS for number in range(1, 10)]
    every = [list(two) for two in product(steps, steps)]
    counts = {"sft": instructed, "rated": rated, "test": 96}
    if sum(counts.values()) > len(every):
        raise DataError(
            f"programs: {sum(counts.values())} instructions asked for, of {len(every)}; lower a size"
        )
    rng = random.Random(f"programs {seed}")
    rng.shuffle(every)
    instructions, chance = iter(every), {"good": fine, "bad": coarse}
    for split, count in counts.items():
        for number in range(count):
            asked = next(instructions)
            meta: dict[str, Any] = {"steps": asked}
            row: dict[str, Any] = {"id": f"program-{seed}-{split}-{number}", "split": split, "meta": meta}
            row["prompt"] = [{"role": "user", "content": f"x {', '.join(asked)}"}]
            if split == "rated":
                meta["preference"] = PREFERENCES[number % len(PREFERENCES)]
                meta["answers"] = [
                    program(asked, right, chance[style], rng) for style, right in rng.sample(POOL, len(POOL))
                ]
            for copy in range(demonstrations if split == "sft" else 0):
                text = program(asked, True, chance[rng.choice(("good", "bad"))], rng)
                completion = [{"role": "assistant", "content": text}]
                yield {**row, "id": f"{row['id']}-{copy}", "completion": completion}
            if split != "sft":
                yield row
