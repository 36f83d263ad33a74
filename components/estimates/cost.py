"""Cost of one stage: memory, disk, tokens and time."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from ratchet.components.estimates.memory import Parts
from ratchet.components.estimates.rates import Rates
from ratchet.components.recipes.plan import Stage

SAVED = 20.0  # bytes per token in a groups artifact: id, mask, log-prob and text, compressed


@dataclass
class Cost:
    """Cost of one stage. `memory`: peak bytes on one device by part; `host`: bytes of host memory; tokens by
    kind of work, and seconds; nan where they are unknown.
    """

    stage: Stage
    memory: Parts = field(default_factory=dict)
    host: float = 0.0
    disk: float = 0.0
    learn: float = 0.0
    updates: float = 0.0  # optimiser steps, of all parameters that the adapter trains
    score: float = 0.0
    sample: float = 0.0
    adapter: str = ""
    models: int = 0
    seconds: float = math.nan

    @property
    def bytes(self) -> float:
        return sum(self.memory.values())

    @property
    def tokens(self) -> float:
        return self.learn + self.score + self.sample


START_SECONDS = 0.5
"""What a stage takes on top of its own work (process, inputs, digests of the output), on two CPU cores."""


def seconds(cost: Cost, rates: Rates | None) -> float:
    """Seconds from tokens, throughput, optimiser steps, model loads and the stage's start; nan if any is
    unknown or there are no tokens. A stage that trains (it has a `fit`) samples and scores on all ranks, any
    other one on the engines of one machine.
    """
    if rates is None or cost.tokens == 0:
        return math.nan
    learning = cost.learn / rates.learn[cost.adapter] if cost.learn else 0.0
    inference = cost.score / rates.score + cost.sample / rates.sample
    spread = rates.spread if "fit" in cost.stage.options else 1.0
    updating = cost.updates * rates.update[cost.adapter] if cost.updates else 0.0
    return START_SECONDS + learning + updating + inference / spread + cost.models * rates.load
