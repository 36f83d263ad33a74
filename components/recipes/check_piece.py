"""Static check of one piece: the columns and models that it reads, and the pieces that its options name."""

from __future__ import annotations

from collections.abc import Mapping

from ratchet.components.errors import RecipeError, nearest
from ratchet.components.piece import Description, describe
from ratchet.components.recipes.check_fit import check_reads
from ratchet.components.recipes.check_signature import check_signature
from ratchet.components.recipes.schema import Spec

BY_NAME = ("verifier", "scorer")
"""Options that name a reward piece."""


def check_piece(slot: str, spec: Spec, have: set[str], models: set[str], where: str) -> set[str]:
    """The columns after a piece with this spec, from those before it. `RecipeError` if it cannot run."""
    description = describe(slot, spec["name"], where=where)
    check_signature(description, where)
    check_reads(description.named("reads", spec), have, spec["name"], where)
    writes = set(description.named("writes", spec))
    if slot == "annotate" and writes & have:
        raise RecipeError(
            f"{where}: {spec['name']!r} writes {sorted(writes & have)}, which is already written"
        )
    for name in sorted(description.named("models", spec) - models):
        raise RecipeError(
            f"{where}: {spec['name']!r} needs the model {name!r}, which does not exist{nearest(name, models)}"
        )
    _check_named(description, spec, where)
    return have | writes


def _check_named(description: Description, spec: Spec, where: str) -> None:
    """A reward piece that an option names exists, and writes what is read of it: the column `reward`, or the
    only one that it writes; also in the options of an environment.
    """
    for option in description.options.values():
        if option.nested not in ("", "annotate"):
            inner = spec[option.name]
            _check_named(describe(option.nested, inner["name"]), inner, f"{where}.{option.name}")
    rewards = {o.name for o in description.options.values() if o.name in BY_NAME or o.nested == "annotate"}
    for option in sorted(name for name in rewards if spec.get(name)):
        named, at = spec[option], f"{where}.{option}"
        inner = named if isinstance(named, Mapping) else {"name": named}
        written = describe("annotate", inner["name"], where=at).named("writes", inner)
        columns = sorted(column for column in written if not column.endswith(".status"))
        reward = spec.get("reward") if isinstance(named, str) else None
        if reward is None and len(columns) != 1:
            raise RecipeError(
                f"{at}: expected a piece that writes one reward, got {inner['name']!r}, which writes "
                f"{', '.join(columns) or 'none'}"
            )
        if reward is not None and reward not in columns:
            raise RecipeError(
                f"{at}: {inner['name']!r} writes {', '.join(columns)}, but {spec['name']!r} reads {reward!r} "
                "of it; set `reward` to what it writes"
            )
