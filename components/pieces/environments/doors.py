"""Environment `doors`: rooms in a row, each with one door that leads on, in a fixed number of turns."""

from __future__ import annotations

from collections.abc import Mapping

from ratchet.components.errors import DataError
from ratchet.components.piece import piece
from ratchet.components.recipes.ranges import Count
from ratchet.components.types import Observation, Prompt, Step

DOORS = "abc"
MOST = 9
"""Largest number of rooms: a room's number is a single digit."""


@piece(paper="arXiv:2402.19446")
class Doors:
    """A game of several turns with a late reward, in the place of the paper's (section 5). An action is a
    door, "a", "b" or "c". `right` has the door of each room that leads to the next one; any other, and an
    action that is no door, leads back to the first room. The door out of the last room has the reward 1 and
    leads to the first room too; the return is the number of these. The observation is the number of the room
    that one is in now; episodes start in room 1, which is not said. An episode is `turns` actions long under
    every policy, so that equally many episodes are equally many turns.

    Measures: `exits` (the return), `onward` (share of the actions that were right) and `errors` (invalid
    actions). `DataError` for `right` of no or more than 9 doors, or of other letters.
    """

    def __init__(self, *, right: str = "bca", turns: Count = 6) -> None:
        if not 1 <= len(right) <= MOST or set(right) - set(DOORS):
            raise DataError(f"doors: expected `right` of 1 to {MOST} letters out of {DOORS}, got {right!r}")
        self.right, self.turns = right, turns
        self.room, self.made, self.exits, self.onward, self.errors = 0, 0, 0, 0, 0

    def begin(self, prompt: Prompt) -> Observation:
        return Observation()

    def step(self, action: str) -> Step:
        door = action.strip()
        valid, right = door in tuple(DOORS), door == self.right[self.room]
        out = right and self.room == len(self.right) - 1
        self.room = self.room + 1 if right and not out else 0
        self.made, self.exits = self.made + 1, self.exits + out
        self.onward, self.errors = self.onward + right, self.errors + (not valid)
        done = self.made == self.turns
        shown = {"role": "user", "content": str(self.room + 1)}
        return Step(Observation(() if done else (shown,), valid), float(out), done)  # pyright: ignore[reportArgumentType]

    def score(self) -> Mapping[str, float]:
        return {
            "exits": float(self.exits),
            "onward": self.onward / max(self.made, 1),
            "errors": float(self.errors),
        }
