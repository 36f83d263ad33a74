"""Environment `hidden_numbers`: guesses at one hidden number after another, in a fixed number of turns."""

from __future__ import annotations

import random
from collections.abc import Mapping

from ratchet.components.errors import DataError
from ratchet.components.piece import piece
from ratchet.components.recipes.ranges import Count
from ratchet.components.types import Message, Observation, Prompt, Step

YES: Message = {"role": "user", "content": "Yes."}
NO: Message = {"role": "user", "content": "No."}
MOST = 9
"""Largest hidden number: the numbers are single digits."""


@piece(paper="arXiv:2402.19446")
class HiddenNumbers:
    """Twenty Questions and Guess My City of the paper (section 5) without their language: a guess is answered
    by "Yes." or "No.", and after "Yes." the next number is hidden. An episode is `turns` guesses long under
    every policy, so that equally many episodes are equally many turns. The reward of a turn is 1 for a right
    guess, else 0; the return is the number of right guesses.

    The hidden numbers are independent and uniform over 1 to `numbers` (at most 9, `DataError`). They depend
    on the prompt's id only: all episodes of a prompt have the same. An action that is no such number is
    invalid and answered by "No.".

    Measures: `hits` (the return), `repeats` (guesses that "No." has ruled out) and `errors` (invalid
    actions).
    """

    def __init__(self, *, numbers: Count = 3, turns: Count = 5) -> None:
        if numbers > MOST:
            raise DataError(f"hidden_numbers: expected numbers of at most {MOST}, got {numbers}")
        self.known, self.turns = {str(n) for n in range(1, numbers + 1)}, turns
        self.made, self.hits, self.repeats, self.errors = 0, 0, 0, 0
        self.excluded: set[str] = set()
        self.hidden: list[str] = []

    def begin(self, prompt: Prompt) -> Observation:
        rng = random.Random(f"hidden_numbers {prompt.id}")
        self.hidden = [str(rng.randint(1, len(self.known))) for _ in range(self.turns)]
        return Observation()

    def step(self, action: str) -> Step:
        guess = action.strip()
        valid, right = guess in self.known, guess == self.hidden[self.hits]
        self.made += 1
        self.errors += not valid
        self.repeats += guess in self.excluded
        if right:
            self.hits, self.excluded = self.hits + 1, set()
        elif valid:
            self.excluded.add(guess)
        done = self.made == self.turns
        return Step(Observation(() if done else (YES if right else NO,), valid), float(right), done)

    def score(self) -> Mapping[str, float]:
        return {"hits": float(self.hits), "repeats": float(self.repeats), "errors": float(self.errors)}
