"""Testbed `functions`: small Python functions from instructions, with asserts that a sandbox runs."""

from __future__ import annotations

import operator
import random
from collections.abc import Iterator
from itertools import product
from typing import Any

from ratchet.components.errors import DataError
from ratchet.components.piece import piece
from ratchet.components.pieces.rewards.program import OPERATIONS, TESTS
from ratchet.components.recipes.ranges import Count, Natural, Share

CALLS = {"+": operator.add, "-": operator.sub, "*": operator.mul}


def function(steps: list[str]) -> str:
    """A function of one line that takes `steps` in turn.

    >>> function(["times 3", "minus 4"])
    'def f(x): return (x * 3) - 4'
    """
    (first, one), (second, two) = (step.split() for step in steps)
    return f"def f(x): return (x {OPERATIONS[first]} {one}) {OPERATIONS[second]} {two}"


def value(steps: list[str], x: int) -> int:
    """The function's value at `x`.

    >>> value(["times 3", "minus 4"], 2)
    2
    """
    for step in steps:
        word, number = step.split()
        x = CALLS[OPERATIONS[word]](x, int(number))
    return x


@piece(paper="arXiv:2107.03374")
def functions(
    *, size: Count = 300, prompts: Count = 300, held_out: Count = 96, right: Share = 0.5, seed: Natural = 0
) -> Iterator[dict[str, Any]]:
    """Instructions such as "f: times 3, minus 4", 729 of two steps, each at most once, with the asserts of
    its function in `test_list`, as in MBPP; `rewards.unit_tests` runs them. Read the splits with
    `data.columns: {split: split}`: `size` demonstrations {id, prompt, completion, test_list, split} of split
    `sft` are right with probability `right`, else one number is another; `prompts` rows {id, prompt,
    test_list, split} of `prompts` and `held_out` of `test` have no completion.

    Shows: whether learning from tests that pass raises the share of right programs over demonstrations with
    errors. Does not show: programs with branches or loops, or tests that a wrong program passes.
    """
    steps = [f"{word} {number}" for word in OPERATIONS for number in range(1, 10)]
    every = [list(two) for two in product(steps, steps)]
    plan = {"sft": size, "prompts": prompts, "test": held_out}
    if sum(plan.values()) > len(every):
        raise DataError(
            f"functions: {sum(plan.values())} instructions asked for, of {len(every)}; lower a size"
        )
    rng = random.Random(f"functions {seed}")
    rng.shuffle(every)
    instructions = iter(every)
    for split, count in plan.items():
        for number in range(count):
            asked = next(instructions)
            row = {
                "id": f"function-{seed}-{split}-{number}",
                "prompt": [{"role": "user", "content": f"f: {', '.join(asked)}"}],
                "test_list": [f"assert f({x}) == {value(asked, x)}" for x in TESTS],
                "split": split,
            }
            if split == "sft":
                if rng.random() >= right:
                    at = rng.randrange(2)
                    word, digit = asked[at].split()
                    other = rng.choice([n for n in range(1, 10) if str(n) != digit])
                    asked = [*asked[:at], f"{word} {other}", *asked[at + 1 :]]
                row["completion"] = [{"role": "assistant", "content": function(asked)}]
            yield row
