"""Whether local data have as many prompts and held-out pairs as the recipe asks for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ratchet.components.errors import GateError, RecipeError
from ratchet.components.piece import build
from ratchet.components.recipes.changed_rounds import with_rounds
from ratchet.components.recipes.schema import Online, Recipe, Reward
from ratchet.components.types import Group


def check_counts(recipe: Recipe, splits: Mapping[str, Sequence[Group]]) -> None:
    """`GateError` if a phase must stop for want of data after earlier ones have trained: lengths in tokens
    can only take more away.
    """
    for where, section in with_rounds(recipe):
        if isinstance(section, Online) and section.data in splits:
            prompts = [group.prompt for group in splits[section.data]]
            sampler = build("prompts", section.prompts)
            try:
                sampler(prompts, section.prompts_per_round, 1, section.rounds, 0)
            except RecipeError as error:
                raise GateError(
                    f"{where}.prompts_per_round: {error}, or give {section.data!r} more data"
                ) from None
        if isinstance(section, Reward) and section.validation in splits:
            least, have = section.certificate.min_pairs, len(splits[section.validation])
            have = min(have, section.limit_validation or have)
            if least is not None and have < least:
                raise GateError(
                    f"{where}.certificate.min_pairs: expected {least} held-out pairs, got {have} in "
                    f"{section.validation!r}: give it a larger share or more data, or lower the bound"
                )
