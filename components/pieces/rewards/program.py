"""Rewards of short programs: whether they pass their tests, five preferences, and a judge who rates several
programs together.
"""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from statistics import fmean

from ratchet.components.errors import DataError
from ratchet.components.piece import each, piece
from ratchet.components.pieces.rewards.ratings import rating
from ratchet.components.recipes.ranges import Finite, NotNegative, Share
from ratchet.components.types import OK, Columns, Context, Group, Prompt, Trajectory

OPERATIONS = {"plus": "+", "minus": "-", "times": "*"}
"""Word of an instruction -> operator of a program."""
TESTS = (-3, 0, 1, 2, 7)
"""Inputs of the tests, which no prompt shows."""
LINES, LARGEST, LONGEST = 8, 10**9, 400
"""Limits of a program: statements, absolute value of a result, characters."""
STATEMENT = re.compile(r" *([a-z]+) *= *([a-z]+|\d{1,6})(?: *([+*-]) *([a-z]+|\d{1,6}))? *")
PREFERENCES = ("following", "complexity", "style", "readability", "explanation")
"""Instruction following, complexity and efficiency, style, readability, explanation."""
BLOCK = re.compile(r"Output (\d+)\nRating: ([1-5])\nRationale: (.+)")
WORDS = ("poor", "weak", "fair", "good", "excellent")
"""Of the ratings 1 to 5, in the judge's rationales."""


def statements(text: str) -> list[tuple[str, str, str, str]]:
    """(name, first operand, operator, second operand) of each statement of a program, one a line, comments
    left out; operator and second operand are "" for a copy. `ValueError` for any other line.
    """
    if len(text) > LONGEST:
        raise ValueError(f"expected at most {LONGEST} characters, got {len(text)}")
    found = []
    for line in text.split("\n"):
        code = line.partition("#")[0]
        if not code.strip():
            continue
        match = STATEMENT.fullmatch(code)
        if not match:
            raise ValueError(f"expected `name = a + b`, got {code!r}")
        name, first, operator, second = match.groups(default="")
        found.append((name, first, operator, second))
    if not 1 <= len(found) <= LINES:
        raise ValueError(f"expected 1 to {LINES} statements, got {len(found)}")
    return found


def run(text: str, x: int) -> int:
    """The last value that a program assigns, for the input `x`. An interpreter of assignments with at most
    one of + - *, which can neither loop nor reach anything outside; `ValueError` for another program, an
    unknown name or a number beyond `LARGEST`.

    >>> run("half = x * 3\\ntotal = half - 4  # times 3, minus 4", 2)
    2
    """
    values, result = {"x": x}, 0
    for name, first, operator, second in statements(text):
        numbers = []
        for operand in (first, second) if operator else (first,):
            if not operand.isdigit() and operand not in values:
                raise ValueError(f"the name {operand!r} has no value yet")
            numbers.append(int(operand) if operand.isdigit() else values[operand])
        result = _apply(operator, *numbers)
        if abs(result) > LARGEST:
            raise ValueError(f"the number {result} is too large")
        values[name] = result
    return result


def wanted(steps: Sequence[str], x: int) -> int:
    """The result that an instruction asks for: its steps, such as "times 3", one after another.

    >>> wanted(["times 3", "minus 4"], 2)
    2
    """
    for step in steps:
        word, number = step.split()
        x = _apply(OPERATIONS[word], x, int(number))
    return x


def _apply(operator: str, first: int, second: int = 0) -> int:
    return first * second if operator == "*" else first - second if operator == "-" else first + second


def follows(text: str, steps: Sequence[str]) -> float:
    """1 for a program that gives the right result on all `TESTS`, 1/2 for one that runs, else 0."""
    try:
        results = [run(text, x) for x in TESTS]
    except ValueError:
        return 0.0
    return 1.0 if results == [wanted(steps, x) for x in TESTS] else 0.5


def scores(text: str, steps: Sequence[str]) -> dict[str, float]:
    """How far a program fulfils each of the five preferences, 0 to 1:

    - following: `follows`;
    - complexity: the number of steps over that of operations, at most 1;
    - style: the share of =, +, - and * with one space on either side;
    - readability: the mean over the names that it assigns of (letters - 1) / 3, at most 1;
    - explanation: the share of the steps that a comment says in the instruction's words.

    All are 0 for a text that is no program.
    """
    try:
        found = statements(text)
    except ValueError:
        return dict.fromkeys(PREFERENCES, 0.0)
    code = "\n".join(line.partition("#")[0].rstrip() for line in text.split("\n"))
    comments = " ".join(line.partition("#")[2] for line in text.split("\n"))
    marks = re.findall(r"(?<=[^ ]) [=+*-] (?=[^ ])", code)
    operations = sum(bool(operator) for _, _, operator, _ in found)
    return {
        "following": follows(text, steps),
        "complexity": min(1.0, len(steps) / operations) if operations else 1.0,
        "style": len(marks) / len(re.findall(r"[=+*-]", code)),
        "readability": fmean(min(1.0, (len(name) - 1) / 3) for name, *_ in found),
        "explanation": fmean(step in comments for step in steps),
    }


@piece(writes=("reward.passed", "reward.passed.status"), paper="arXiv:2403.09032")
@each
def passed(prompt: Prompt, trajectory: Trajectory) -> float:
    """1 if the program gives the right result on all `TESTS`, else 0. Fails for a prompt without
    `meta["steps"]`.
    """
    return float(follows(trajectory.text, _steps(prompt)) == 1)


@piece(writes=("reward.attributes", "reward.attributes.status"), paper="arXiv:2403.09032")
@each
def attributes(prompt: Prompt, trajectory: Trajectory) -> float:
    """Mean of the five preferences of `scores`, on a scale from 1 to 5: what a judge without errors would
    rate, for evaluation. Fails for a prompt without `meta["steps"]`.
    """
    return 1 + 4 * fmean(scores(trajectory.text, _steps(prompt)).values())


@piece(writes=("reward.judged", "reward.judged.status"), paper="arXiv:2403.09032", by_group=True)
def judged(
    groups: Sequence[Group],
    ctx: Context,
    *,
    noise: NotNegative = 0.15,
    favour: Finite = 0.1,
    garbled: Share = 0.02,
) -> Columns:
    """`reward.judged`: ratings from 1 to 5 that a simulated judge gives to all answers of a prompt in one
    reply, by the preference in `meta["preference"]` alone (CodeUltraFeedback, section 3.2).

    The judge sees the answers in a random order, which the ratings do not keep. Before rounding, each rating
    has a Gaussian error of `noise` (on the scale of `scores`), and the answer that is shown first is favoured
    by `favour`. With probability `garbled` the reply lacks a block; then none of its ratings counts. Random
    numbers are a function of seed, round and prompt. Fails for a prompt without a preference.
    """
    values, statuses = [], []
    for group in groups:
        steps, preference = _steps(group.prompt), group.prompt.meta.get("preference")
        if preference not in PREFERENCES:
            raise DataError(
                f"prompt {group.prompt.id!r}: expected meta.preference of {', '.join(PREFERENCES)}, got "
                f"{preference!r}"
            )
        rng = random.Random(f"{ctx.seed}/{ctx.round}/{group.prompt.id}/judged")
        number = len(group.trajectories)
        order = rng.sample(range(number), number)
        shown = [scores(group.trajectories[i].text, steps)[preference] for i in order]
        felt = [score + favour * (place == 0) + noise * rng.gauss() for place, score in enumerate(shown)]
        lost = rng.randrange(number) if rng.random() < garbled else None
        found = ratings_of(reply(felt, preference, lost), number)
        if found is None:
            values.append([None] * number)
            statuses.append(["skipped: the judge's reply has no rating for some answer"] * number)
            continue
        by_answer = dict(zip(order, found, strict=True))
        values.append([float(by_answer[i]) for i in range(number)])
        statuses.append([OK] * number)
    return {"reward.judged": values, "reward.judged.status": statuses}


def reply(felt: Sequence[float], preference: str, lost: int | None = None) -> str:
    """The judge's reply: a block of rating and rationale for each answer, in the order in which they were
    shown, without that of the answer `lost`.
    """
    blocks = []
    for place, value in enumerate(felt):
        if place != lost:
            given = rating(value, 5)
            rationale = f"its {preference} is {WORDS[given - 1]}."
            blocks.append(f"Output {place + 1}\nRating: {given}\nRationale: {rationale}")
    return "\n\n".join(blocks)


def ratings_of(text: str, number: int) -> list[int] | None:
    """The ratings of `number` answers in the order in which they were shown; None unless the reply has
    exactly one block for each.

    >>> ratings_of(reply([0.0, 1.0], "style"), 2), ratings_of(reply([0.0, 1.0], "style", 0), 2)
    ([1, 5], None)
    """
    blocks = [(int(place), int(given)) for place, given, _ in BLOCK.findall(text)]
    if [place for place, _ in blocks] != list(range(1, number + 1)):
        return None
    return [given for _, given in blocks]


def _steps(prompt: Prompt) -> Sequence[str]:
    steps = prompt.meta.get("steps")
    words = {*OPERATIONS} if isinstance(steps, Sequence) and not isinstance(steps, str) else set[str]()
    if not steps or not all(str(step).split()[0] in words for step in steps):
        raise DataError(
            f"prompt {prompt.id!r}: expected meta.steps, a list such as ['times 3', 'minus 4'], got {steps!r}"
        )
    return steps
