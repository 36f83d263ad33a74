"""Testbed `last_digits`: sums in steps that keep the last digit, shown with estimates, which are wrong, in
most steps that add more than one.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from typing import Any

from ratchet.components.errors import DataError
from ratchet.components.piece import piece
from ratchet.components.recipes.ranges import Count, Natural, Share

MOST_TERMS = 9
"""Terms of the longest sum. Eight slips do not add up to ten."""
LABELS = "abcdefgh"
"""Labels of the terms after the first, which a small model finds them by."""


def worked(digits: Sequence[int], slips: Sequence[bool], base: int = 10) -> str:
    """The steps of an answer in base `base`. A step whose slip is True and that adds more than 1 has a ~ and
    is one too high.

    >>> worked([7, 1, 3, 2], [False, False, False])
    'a7+1=8,b8+3=1,c1+2=3'
    >>> worked([7, 1, 3, 2], [True, True, False])
    'a7+1=8,b8~3=2,c2+2=4'
    """
    total, steps = digits[0], []
    for label, digit, slip in zip(LABELS, digits[1:], slips, strict=False):
        wrong = slip and digit > 1
        result = (total + digit + wrong) % base
        steps.append(f"{label}{total}{'~' if wrong else '+'}{digit}={result}")
        total = result
    return ",".join(steps)


@piece(paper="arXiv:2406.03816")
def last_digits(
    *,
    size: Count = 2000,
    terms: Count = 8,
    largest: Count = 3,
    base: Count = 10,
    slip: Share = 0.6,
    seed: Natural = 0,
) -> Iterator[dict[str, Any]]:
    """Rows {id, prompt, completion, answer, split, meta} of sums of 2 to `terms` terms (at most 9), "7a1b3c2"
    with the answer "3", the last digit of the sum in base `base` (4 to 10). The first term is any digit, the
    others are 1 to `largest`, which is less than `base`, and follow their labels. The completion has a step
    for each addition, separated by commas, "a7+1=8,b8+3=1,c1+2=3", each with the last digit of the sum so
    far. Where a step adds more than 1, the demonstrator estimates with probability `slip`, which it writes
    with a ~ ("b8~3=2"), is one too high, and goes on with that.

    Of each eight rows six are of the split `sft`, one of `prompts` and one of `test`, whose sums all have
    `terms` terms; there are fewer short sums, since no two rows have equal prompts. `DataError` for other
    numbers, and for more rows than half of the sums of `terms` terms.

    Above a `slip` of 0.5 the likeliest result of such a step is wrong. Every mistake is a slip upwards, so
    that only `base` of them cancel: in base 9 or 10 a right answer has right steps only.

    Shows: whether search, or learning from its answers, finds right steps that a policy takes seldom.
    Does not show: steps in words, mistakes without a sign that a small value model can learn to see, or right
    answers with wrong steps.
    """
    if not (4 <= terms <= MOST_TERMS and 4 <= base <= 10 and largest < base):
        raise DataError(
            f"last_digits: expected 4 to {MOST_TERMS} terms, a base of 4 to 10 and a largest term below it, "
            f"got {terms}, {base} and {largest}"
        )
    if 2 * size > (known := base * largest ** (terms - 1)):
        raise DataError(f"last_digits: expected a size of at most {known // 2}, got {size}")
    rng, taken = random.Random(f"last_digits {seed}"), set[tuple[int, ...]]()
    for number in range(size):
        split = {6: "prompts", 7: "test"}.get(number % 8, "sft")
        digits = _drawn(rng, terms, largest, base, split)
        while digits in taken:
            digits = _drawn(rng, terms, largest, base, split)
        taken.add(digits)
        slips = [rng.random() < slip for _ in digits[1:]]
        yield {
            "id": f"last-digits-{seed}-{number}",
            "prompt": [{"role": "user", "content": "".join(map("{}{}".format, ("", *LABELS), digits))}],
            "completion": [{"role": "assistant", "content": worked(digits, slips, base)}],
            "answer": str(sum(digits) % base),
            "split": split,
            "meta": {"terms": len(digits)},
        }


def _drawn(rng: random.Random, terms: int, largest: int, base: int, split: str) -> tuple[int, ...]:
    """The terms of a sum."""
    count = terms if split == "test" else rng.randint(2, terms)
    return (rng.randrange(base), *(rng.randint(1, largest) for _ in range(count - 1)))
