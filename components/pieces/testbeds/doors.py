"""Testbed `doors`: rooms in a row, for credit over several turns with a late reward."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

from ratchet.components.piece import piece
from ratchet.components.pieces.environments.doors import DOORS, Doors
from ratchet.components.recipes.ranges import Count, Natural, Share
from ratchet.components.types import Prompt


@piece(paper="arXiv:2402.19446")
def doors(
    *, size: Count = 1000, seed: Natural = 0, right: str = "bca", turns: Count = 6, skill: Share = 0.5
) -> Iterator[dict[str, Any]]:
    """Rows {id, prompt, completion}: "Walk 17." with a demonstration in the environment `doors`. In every
    room the demonstrator takes the right door with probability `skill`, else one of the others.

    With q = `skill` and L rooms, its expected return in t turns from room k is R(t, k) = q R(t - 1, k + 1) +
    (1 - q) R(t - 1, 1), with 1 + R(t - 1, 1) in the place of R(t - 1, k + 1) in the last room: 0.33 in 6
    turns with the defaults. The optimum is t / L rounded down: 2.

    Shows: whether a method learns from episodes which turn earned the return. The door of a room is a matter
    of that room alone, but it is paid turns later and only if the turns in between are right, and an episode
    mixes right and wrong ones.
    Does not show: language, questions that the policy must word, states that only the whole conversation
    tells apart, rewards that come dozens of turns later, environments that are slow.
    """
    rng = random.Random(f"doors {seed}")
    for number in range(size):
        world = Doors(right=right, turns=turns)
        world.begin(Prompt(str(number), ()))
        messages: list[dict[str, str]] = []
        while True:
            good = right[world.room]
            door = good if rng.random() < skill else rng.choice([one for one in DOORS if one != good])
            step = world.step(door)
            messages.append({"role": "assistant", "content": door})
            if step.done:
                break
            messages += [{"role": m["role"], "content": m["content"]} for m in step.observation.messages]
        yield {
            "id": f"doors-{seed}-{number}",
            "prompt": [{"role": "user", "content": f"Walk {number}."}],
            "completion": messages,
        }
