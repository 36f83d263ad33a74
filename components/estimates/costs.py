"""Cost of each stage of a recipe on a profile: memory, disk, tokens, and time from measured or stated
throughput.

Answers are counted at their maximum length (`max_tokens`), so token counts are upper bounds. Data set sizes
come from curation if it has run, else from the recipe's limits; without either they are unknown (nan).
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from ratchet.components.estimates.rates import Rates
from ratchet.components.estimates.shape import Shape
from ratchet.components.estimates.sizes import Split
from ratchet.components.estimates.stage_costs import Cost, StageCosts
from ratchet.components.recipes.phases import section_at
from ratchet.components.recipes.plan import Stage
from ratchet.components.recipes.profile import Profile
from ratchet.components.recipes.schema import Recipe


def estimate(
    recipe: Recipe,
    profile: Profile,
    stages: Mapping[str, Stage],
    shape: Shape,
    splits: Mapping[str, Split],
    rates: Rates | None,
    last: Mapping[str, float],
) -> list[Cost]:
    """Cost of every stage. `last`: seconds that the same stage took in an earlier run of the same model and
    data, used for stages without token counts or with unknown throughput.
    """
    known = StageCosts(recipe, profile, shape, splits)
    costs = []
    for stage in stages.values():
        known.phase = section_at(recipe, stage.phase) if stage.phase else None
        cost = getattr(known, stage.does, known.other)(stage)
        cost.seconds = seconds(cost, rates)
        if cost.tokens == 0 or math.isnan(cost.seconds):
            cost.seconds = last.get(stage.name, math.nan)
        costs.append(cost)
    return costs


def seconds(cost: Cost, rates: Rates | None) -> float:
    """Seconds from tokens, throughput and model loads; nan if any is unknown. A stage that trains (it has a
    `fit`) samples and scores on all ranks, any other one on the engines of one machine.
    """
    if rates is None:
        return math.nan
    learning = cost.learn / rates.learn[cost.adapter] if cost.learn else 0.0
    inference = cost.score / rates.score + cost.sample / rates.sample
    spread = rates.spread if "fit" in cost.stage.options else 1.0
    return learning + inference / spread + cost.models * rates.load
