"""Testbed `judged_steps`: two additions in steps, of which one has a wrong step, and judgements that check
steps at random.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any, NamedTuple

from ratchet.components.errors import DataError
from ratchet.components.piece import piece
from ratchet.components.recipes.ranges import Count, Natural, Share

MOST = 6000
"""Rows; there are about 10,000 different prompts."""
LABELS = "abcd"
"""Labels of the steps: a and b are those of answer A, c and d those of answer B."""


class Step(NamedTuple):
    """A step of an answer, "c3+4=8": its label, two terms and what the answer says is their sum."""

    label: str
    first: int
    second: int
    claimed: int

    @property
    def written(self) -> str:
        return f"{self.label}{self.first}+{self.second}={self.claimed}"

    @property
    def other(self) -> str:
        """The answer that is right if this step is wrong."""
        return "B" if self.label in LABELS[:2] else "A"


def check(step: Step, found: int) -> str:
    """A passage of a judgement: the step, `found` as the sum of its terms, and which answer is right if the
    two differ.

    >>> check(Step("c", 3, 4, 7), 7), check(Step("c", 3, 4, 8), 7)
    ('c3+4=7?7:-.', 'c3+4=8?7:A.')
    """
    conclusion = "-" if found == step.claimed else step.other
    return f"{step.written}?{found}:{conclusion}."


@piece(paper="arXiv:2505.11875")
def judged_steps(
    *,
    size: Count = 3000,
    seed: Natural = 0,
    passages: Count = 4,
    goes_on: Share = 0.75,
    misread: Share = 0.0,
) -> Iterator[dict[str, Any]]:
    """Rows {id, prompt, completion, answer, meta}: "A:a3+1=4,b4+5=9;B:c5+3=8,d8+1=8", two additions of the
    same three numbers in two steps, of which that of `answer`, A or B, is right and the other has one wrong
    step, whose result the next step goes on with. `meta["wrong"]` is the label of that step. All numbers have
    one digit. No two rows have equal prompts; `size` is at most 6,000 (`DataError`).

    The completion is a judgement of one to `passages` passages, "d8+1=8?9:A.Oh,a3+1=4?4:-.So B". Each
    repeats a step drawn at random from all four, whether it was checked before or not, then its true sum,
    and names the answer that is right where the two differ. With probability `goes_on` "Oh," follows and
    another check, else "So" closes. The verdict is that of the last check, and drawn at random if that check
    found nothing, whatever an earlier one found. A sum is misread with probability `misread`, by one or two.

    The demonstrations are right in 62.5 % of the tasks, however many checks they make. A judge that
    keeps what it finds is right in 1 - (3/4)^n / 2 of them after n checks, 84 % after four, and one that
    checks no step twice in all of them after three, since three right steps leave the wrong one.

    Shows: whether a judge makes use of being made to reason longer, before and after RL for its verdict.
    Does not show: reasons in words, judges whose checks are not independent, or reasoning that grows
    longer by itself.
    """
    if size > MOST:
        raise DataError(f"judged_steps: expected a size of at most {MOST}, got {size}")
    rng, taken = random.Random(f"judged_steps {seed}"), set[str]()
    for number in range(size):
        best = rng.choice("AB")
        prompt, steps, wrong = _task(rng, best)
        while prompt in taken:
            prompt, steps, wrong = _task(rng, best)
        taken.add(prompt)
        checked = [rng.choice(steps)]
        while len(checked) < passages and rng.random() < goes_on:
            checked.append(rng.choice(steps))
        read = [_read(step, misread, rng) for step in checked]
        texts = [check(step, found) for step, found in zip(checked, read, strict=True)]
        verdict = checked[-1].other if read[-1] != checked[-1].claimed else rng.choice("AB")
        yield {
            "id": f"judged-steps-{seed}-{number}",
            "prompt": [{"role": "user", "content": prompt}],
            "completion": [{"role": "assistant", "content": f"{'Oh,'.join(texts)}So {verdict}"}],
            "answer": best,
            "meta": {"wrong": wrong},
        }


def _task(rng: random.Random, best: str) -> tuple[str, list[Step], str]:
    """Prompt, its four steps, and the label of the wrong one."""
    numbers = [rng.randint(1, 7)]
    numbers.append(rng.randint(1, 8 - numbers[0]))
    numbers.append(rng.randint(1, 9 - sum(numbers)))
    steps, wrong = list[Step](), ""
    for answer, labels in (("A", LABELS[:2]), ("B", LABELS[2:])):
        x, y, z = rng.sample(numbers, 3)
        at = None if answer == best else rng.randrange(2)
        wrong = wrong if at is None else labels[at]
        half = _other(x + y, 9 - z, rng) if at == 0 else x + y
        total = _other(half + z, 9, rng) if at == 1 else half + z
        steps += [Step(labels[0], x, y, half), Step(labels[1], half, z, total)]
    a, b, c, d = (step.written for step in steps)
    return f"A:{a},{b};B:{c},{d}", steps, wrong


def _other(right: int, most: int, rng: random.Random) -> int:
    """A wrong result from 1 to `most`, which has one; the right one is at least 2."""
    return rng.choice([n for n in range(1, most + 1) if n != right])


def _read(step: Step, misread: float, rng: random.Random) -> int:
    right = step.first + step.second
    if rng.random() >= misread:
        return right
    return rng.choice([n for n in (right - 2, right - 1, right + 1, right + 2) if 0 <= n <= 9])
