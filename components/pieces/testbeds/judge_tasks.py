"""Testbed `judge_tasks`: a request with several answers to score, and imperfect judgements of them."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

from ratchet.components.errors import DataError
from ratchet.components.piece import piece
from ratchet.components.recipes.ranges import Count, Natural, Share

SUBJECTS = (
    *("books", "cats", "coffee", "cooking", "dogs", "films"),
    *("football", "games", "music", "rain", "sleep", "travel"),
)
"""One token each for the tiny model."""
REQUESTS = {
    "?": ("Ask about {}.", "Ask me about {}.", "Ask of {}."),
    ".": ("Tell about {}.", "Tell me about {}.", "Tell of {}."),
}
"""Requests of a question and of a statement."""
ANSWERS = {
    "?": ("Do you like {}?", "Do you love {}?", "Do you hate {}?"),
    ".": ("I do like {}.", "I do love {}.", "I do hate {}."),
}
"""Questions and statements, all of five tokens: what the tiny model looks for is at equal places."""
LACKS = ((True, False), (False, True), (True, True))
"""What a wrong answer lacks: the subject, the kind of sentence, both."""
LETTERS = "ABC"
MOST = 3000
"""A third of the rows lack the kind of sentence alone; 1,296 prompts with two answers do."""

Traits = tuple[str, str]
"""Subject and mark at the end of a sentence, "?" or "."."""


def judgement(wanted: Traits, found: list[Traits]) -> str:
    """The principle, and for each answer what is found in it and a score: 1, 5 or 9 for none, one or both of
    the traits wanted.

    >>> judgement(("rain", "?"), [("rain", "."), ("rain", "?")])
    'About rain? A: rain. 5. B: rain? 9.'
    """
    parts = [f"About {wanted[0]}{wanted[1]}"]
    for letter, (thing, mark) in zip(LETTERS, found, strict=False):
        score = 1 + 4 * (thing == wanted[0]) + 4 * (mark == wanted[1])
        parts.append(f"{letter}: {thing}{mark} {score}.")
    return " ".join(parts)


@piece(paper="arXiv:2504.02495")
def judge_tasks(
    *, size: Count = 2000, seed: Natural = 0, answers: Count = 2, misread: Share = 0.17
) -> Iterator[dict[str, Any]]:
    """Rows {id, prompt, completion, answer, meta}: a request for a question or a statement about a subject,
    and `answers` (two or three) lettered answers, of which one, `answer`, has the subject and the kind of
    sentence; each of the others lacks one of them or both, with equal chances. `meta["answers"]` is their
    number. The completion is a `judgement`, in which the subject and the mark of each answer are misread with
    probability `misread`, independently. No two rows have equal prompts; `size` is at most 3,000
    (`DataError`).

    A misreading raises or lowers a score by 4. With the default, 71 % of the judgements of two answers put
    the right one first and 60 % of those of three; by the sum of 8 judgements, 99 % of the tasks of two.

    Shows: whether a judge that writes its reasons before its scores learns from the outcome alone to judge
    better than its demonstrations, on tasks it has not seen, and how much better several judgements are than
    one. Does not show: reasons in free words, tasks without a right answer, or errors that all judgements
    share: misreadings are independent here, so that votes cancel them.
    """
    if not 2 <= answers <= len(LETTERS) or size > MOST:
        raise DataError(
            "judge_tasks: expected two or three answers and a size of at most "
            f"{MOST}, got {answers} and {size}"
        )
    rng, taken = random.Random(f"judge_tasks {seed}"), set[str]()
    for number in range(size):
        best, prompt = rng.randrange(answers), ""
        lacks = [(False, False) if i == best else rng.choice(LACKS) for i in range(answers)]
        while not prompt or prompt in taken:
            wanted = (rng.choice(SUBJECTS), rng.choice("?."))
            traits = [_exchanged(wanted, wanted, lack, rng) for lack in lacks]
            texts = [rng.choice(ANSWERS[mark]).format(thing) for thing, mark in traits]
            listed = [f"{letter}: {text}" for letter, text in zip(LETTERS, texts, strict=False)]
            prompt = " ".join([rng.choice(REQUESTS[wanted[1]]).format(wanted[0]), *listed])
        taken.add(prompt)
        read = [(rng.random() < misread, rng.random() < misread) for _ in traits]
        found = [_exchanged(own, wanted, wrong, rng) for own, wrong in zip(traits, read, strict=True)]
        yield {
            "id": f"judge-{seed}-{number}",
            "prompt": [{"role": "user", "content": prompt}],
            "completion": [{"role": "assistant", "content": judgement(wanted, found)}],
            "answer": LETTERS[best],
            "meta": {"answers": answers},
        }


def _exchanged(own: Traits, wanted: Traits, which: tuple[bool, bool], rng: random.Random) -> Traits:
    """The traits, of which those of `which` are replaced: the one wanted by another, another by that."""
    thing, mark = own
    if which[0] and thing != wanted[0]:
        thing = wanted[0]
    elif which[0]:
        thing = rng.choice([one for one in SUBJECTS if one != wanted[0]])
    if which[1]:
        mark = "?" if mark == "." else "."
    return thing, mark
