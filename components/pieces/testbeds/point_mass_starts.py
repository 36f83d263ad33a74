"""Testbed `point_mass_starts`: places from which a mass is to be driven to a target."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

from ratchet.components.piece import piece
from ratchet.components.recipes.ranges import Count, Natural


@piece(paper="arXiv:1801.00690")
def point_mass_starts(
    *, shown: Count = 200, prompts: Count = 200, test: Count = 100, seed: Natural = 0
) -> Iterator[dict[str, Any]]:
    """Prompts of the environment `point_mass`: rows {id, prompt, meta} with position and velocity in
    `meta.start`, each number uniform from -1 to 1, for velocities from -0.5 to 0.5. Splits `shown` for the
    expert's episodes, `prompts` and `test`; read them with `data.columns: {split: split}`.

    Shows: whether a policy of real-valued actions learns from the rewards of single steps with a critic what
    imitation of a poor controller did not teach it. Does not show: contact, pictures, exploration (the reward
    is dense), or more than four numbers of state.
    """
    rng = random.Random(f"point_mass_starts {seed}")
    for split, count in (("shown", shown), ("prompts", prompts), ("test", test)):
        for number in range(count):
            start = [round(rng.uniform(-1, 1) * scale, 3) for scale in (1, 1, 0.5, 0.5)]
            name, text = (
                f"{split}-{seed}-{number}",
                f"Drive the mass from {start[:2]} at {start[2:]} to the target.",
            )
            prompt = [{"role": "user", "content": text}]
            yield {"id": name, "split": split, "prompt": prompt, "meta": {"start": start}}
