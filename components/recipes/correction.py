"""Off-policy correction: adds truncated importance weights to a recipe if the profile samples with another
engine.

If the inference engine is not the learner's, every policy-gradient objective (one that reads `advantages` and
log-probs) is multiplied by truncated importance weights (`components/pieces/scoring/importance.py`): the
learner recomputes `logprobs.old`, ratios use these instead of the sampler's, and the terms are weighted by
`weight_column`. Objectives that accept any answers, such as those on pairs, are unchanged. The change is
visible in the run's recipe.yaml.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from ratchet.components.piece import describe, resolve
from ratchet.components.recipes.phases import with_sections
from ratchet.components.recipes.profile import Profile
from ratchet.components.recipes.schema import Online, Recipe

COLUMNS = {"step": ("importance", "scoring.importance"), "row": ("importance.row", "scoring.importance.row")}
"""Unit of an objective -> weight column, and the piece that writes it."""


def corrected(recipe: Recipe, profile: Profile) -> Recipe:
    """The recipe as corrected for this profile. `vllm.importance_cap: null` disables the correction."""
    cap = profile.vllm.importance_cap
    if profile.engine == "torch" or cap is None:
        return recipe
    return with_sections(
        recipe, lambda section, _: corrected_section(section, cap) if isinstance(section, Online) else section
    )


def corrected_again(section: Online, whole: Online) -> Online:
    """A round's version of a corrected section, with the same cap applied to its changes."""
    caps = [spec["cap"] for spec in whole.prepare if spec["name"].startswith("scoring.importance")]
    return corrected_section(section, caps[0]) if caps else section


def corrected_section(online: Online, cap: float) -> Online:
    if "logprobs.sampled" not in describe("rollout", online.rollout["name"]).named("writes", online.rollout):
        return online  # answers that the engine did not sample, such as recorded ones
    updates: dict[str, list[Mapping[str, Any]]] = {}
    needed: list[str] = []
    for role, specs in online.fit.updates.items():
        updates[role] = []
        for spec in specs:
            description = describe("objective", spec["name"])
            reads = description.named("reads", spec)
            if (
                "advantages" in reads
                and "logprobs" in description.outputs
                and "weight_column" not in spec
                and description.unit in COLUMNS
            ):
                column, piece = COLUMNS[description.unit]
                spec = {
                    **spec,
                    "weight_column": column,
                    **({"old": "old"} if spec.get("old") == "sampled" else {}),
                }
                needed += [piece]
            updates[role].append(spec)
    if not needed:
        return online
    written = {
        name
        for spec in [*online.annotate, *online.prepare]
        for name in describe("annotate", spec["name"]).named("writes", spec)
    }
    prepare = list(online.prepare)
    for name, options in [
        ("scoring.logprobs.old", {}),
        *((piece, {"cap": cap}) for piece in dict.fromkeys(needed)),
    ]:
        if not describe("annotate", name).writes & written:
            prepare.append(resolve("annotate", {"name": name, **options}))
    return dataclasses.replace(online, prepare=prepare, fit=dataclasses.replace(online.fit, updates=updates))
