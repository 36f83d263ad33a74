"""The off-policy correction a profile asks for, written into the recipe: whoever reads the run's recipe.yaml sees it.

When another engine than the learner's samples, every policy gradient (an objective that reads `advantages` and log-probs) is
multiplied by truncated importance weights (`components/pieces/scoring/importance.py`): `logprobs.old` is scored by the learner, ratios
are taken to it instead of to the sampler's, and the terms are `times` the weight. An objective that reads both log-probs corrects
itself (`clip.truncated`) and is left alone, and so is what learns from answers whoever gave them (DPO, RAFT).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from ratchet.components.piece import describe, resolve
from ratchet.components.recipes.profile import Profile
from ratchet.components.recipes.schema import Online, Recipe

COLUMNS = {"step": ("importance", "scoring.importance"), "row": ("importance.row", "scoring.importance.row")}
"""Unit of an objective -> the column it is multiplied by, and the piece that writes it."""


def corrected(recipe: Recipe, profile: Profile) -> Recipe:
    """The recipe as this profile runs it. `vllm.importance_cap: null` leaves it as it was written."""
    if profile.engine == "torch" or profile.vllm.importance_cap is None or recipe.online is None:
        return recipe
    return dataclasses.replace(recipe, online=corrected_section(recipe.online, profile.vllm.importance_cap))


def corrected_again(section: Online, whole: Online) -> Online:
    """A round's own version of a section that was corrected: what it changed is corrected with the same cap."""
    caps = [spec["cap"] for spec in whole.prepare if spec["name"].startswith("scoring.importance")]
    return corrected_section(section, caps[0]) if caps else section


def corrected_section(online: Online, cap: float) -> Online:
    updates: dict[str, list[Mapping[str, Any]]] = {}
    needed: list[str] = []
    for role, specs in online.fit.updates.items():
        updates[role] = []
        for spec in specs:
            description = describe("objective", spec["name"])
            reads = description.named("reads", spec)
            if ("advantages" in reads and "logprobs" in description.asks and "times" not in spec and description.unit in COLUMNS
                    and not {"logprobs.old", "logprobs.sampled"} <= reads):
                column, piece = COLUMNS[description.unit]
                spec = {**spec, "times": column, **({"old": "old"} if spec.get("old") == "sampled" else {})}
                needed += [piece]
            updates[role].append(spec)
    if not needed:
        return online
    written = {name for spec in [*online.annotate, *online.prepare]
               for name in describe("annotate", spec["name"]).named("writes", spec)}
    prepare = list(online.prepare)
    for name, options in [("scoring.logprobs.old", {}), *((piece, {"cap": cap}) for piece in dict.fromkeys(needed))]:
        if not describe("annotate", name).writes & written:
            prepare.append(resolve("annotate", {"name": name, **options}))
    return dataclasses.replace(online, prepare=prepare, fit=dataclasses.replace(online.fit, updates=updates))
