"""Testbed `hidden_numbers`: guesses at one hidden number after another, for credit over several turns."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

from ratchet.components.piece import piece
from ratchet.components.pieces.environments.hidden_numbers import HiddenNumbers
from ratchet.components.recipes.ranges import Count, Natural, Share
from ratchet.components.types import Prompt


@piece(paper="arXiv:2402.19446")
def hidden_numbers(
    *,
    size: Count = 1000,
    seed: Natural = 0,
    numbers: Count = 3,
    turns: Count = 5,
    repeat: Share = 0.5,
) -> Iterator[dict[str, Any]]:
    """Rows {id, prompt, completion}: "Guess numbers 17." with a demonstration in the environment
    `hidden_numbers`. After "No." the demonstrator repeats its last guess with probability `repeat`; any other
    guess is uniform over all `numbers` (K), those already ruled out included.

    A guess after "No." is right with probability (1 - r) / K under the demonstrator, with r = `repeat`; the
    optimum excludes: 1 / m with m numbers left. Expected hits in t turns, by recursion: the demonstrator has
    D(t, x) = p_x (1 + D(t - 1, yes)) + (1 - p_x) D(t - 1, no) after x, with p_yes = 1 / K at the start too,
    the optimum B(t, m) = (1 + B(t - 1, K)) / m + (1 - 1 / m) B(t - 1, m - 1). With the defaults 1.16 and 2.33
    of 5; the return of one guess is 1 / K under any policy.

    Shows: whether a method learns from episodes which turn earned the return. Luck dominates the return of an
    episode, and a turn's part in it can be told from what the conversation has ruled out, which a critic
    of turns may learn.
    Does not show: language, questions that the policy must word, rewards that come dozens of turns later,
    environments that are slow.
    """
    rng = random.Random(f"hidden_numbers {seed}")
    for number in range(size):
        name = f"hidden_numbers-{seed}-{number}"
        world = HiddenNumbers(numbers=numbers, turns=turns)
        world.begin(Prompt(name, ()))
        messages: list[dict[str, str]] = []
        last = ""
        while True:
            last = last if last and rng.random() < repeat else str(rng.randint(1, numbers))
            step = world.step(last)
            messages.append({"role": "assistant", "content": last})
            if step.done:
                break
            messages += [{"role": m["role"], "content": m["content"]} for m in step.observation.messages]
            last = "" if step.reward else last
        yield {
            "id": name,
            "prompt": [{"role": "user", "content": f"Guess numbers {number}."}],
            "completion": messages,
        }
