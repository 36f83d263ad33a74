"""Loss reductions: unreduced terms to a scalar, divided by counts over the whole step.

`count` is called on every micro-batch of a step on every rank, and the counts are summed. `reduce` divides
each micro-batch's sum by those totals, so gradient accumulation and data parallelism give the loss of the
unsplit step.

A term is (B,T), (B,) or (U,) according to its objective's `unit`: step, row, pair or group. Ignored: steps
outside the loss mask, rows with an empty mask, pairs with such a row, groups with only such rows.

    token_mean        sum over steps / masked-in steps of the whole step (arXiv 2503.14476)
    row_mean          mean over rows of each row's mean (arXiv 2402.03300)
    row_sum           mean over rows of each row's sum (arXiv 2402.14740)
    unit_mean         mean over pairs, groups or rows
    fixed_length:L    sum over steps / (rows x L); L is a constant of the recipe, e.g. max_tokens
                      (arXiv 2503.20783)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ratchet.components.errors import RecipeError, nearest

if TYPE_CHECKING:
    from torch import Tensor

    from ratchet.components.recipes.piece_source import Unit
    from ratchet.components.types import Batch

LEGAL: dict[str, tuple[str, ...]] = {  # reduction -> units of the terms it can reduce
    "token_mean": ("step",),
    "row_mean": ("step", "row"),
    "row_sum": ("step", "row"),
    "unit_mean": ("row", "pair", "group"),
    "fixed_length": ("step",),
}


@dataclass(frozen=True)
class Counts:
    """Denominators of a step: masked-in tokens, non-empty rows, non-empty units of an objective. Supports
    `+`.
    """

    unit: Unit
    steps: int = 0
    rows: int = 0
    units: int = 0

    def __add__(self, other: Counts) -> Counts:
        if self.unit != other.unit:
            raise ValueError(f"counts of unit {self.unit!r} and of unit {other.unit!r} cannot be added")
        return Counts(self.unit, self.steps + other.steps, self.rows + other.rows, self.units + other.units)


def legal(name: str, unit: str) -> str | None:
    """Error message if reduction `name` cannot reduce terms of this unit, else None. `RecipeError` for an
    unknown name.
    """
    kind, _ = _split(name)
    if unit in LEGAL[kind]:
        return None
    fitting = ", ".join(known for known, units in LEGAL.items() if unit in units)
    return (
        f"reduce {name!r} needs one term per {' or '.join(LEGAL[kind])}, this objective returns one "
        f"per {unit}; use {fitting}"
    )


def count(batch: Batch, unit: Unit) -> Counts:
    """The counts of one micro-batch."""
    live = batch.mask.any(-1)
    return Counts(unit, int(batch.mask.sum()), int(live.sum()), int(live_units(batch, unit).sum()))


def reduce(name: str, loss: Tensor, batch: Batch, totals: Counts) -> Tensor:
    """Contribution of this micro-batch to the loss of the step, a scalar. `totals` are the counts of the
    whole step.
    """
    import torch

    problem = legal(name, totals.unit)
    if problem:
        raise RecipeError(problem)
    kind, length = _split(name)
    if totals.unit != "step":
        live = live_units(batch, totals.unit)
        if loss.shape != live.shape:
            raise ValueError(
                f"an objective of unit {totals.unit!r} returned terms of shape {tuple(loss.shape)}, "
                f"expected {tuple(live.shape)}"
            )
        return torch.where(live, loss, 0.0).sum() / max(totals.units, 1)
    if loss.shape != batch.mask.shape:
        raise ValueError(
            f"an objective of unit 'step' returned terms of shape {tuple(loss.shape)}, expected "
            f"{tuple(batch.mask.shape)}"
        )
    rows = torch.where(batch.mask, loss, 0.0).sum(-1)
    if kind == "token_mean":
        return rows.sum() / max(totals.steps, 1)
    if kind == "row_mean":
        return (rows / batch.mask.sum(-1).clamp(min=1)).sum() / max(totals.rows, 1)
    return rows.sum() / max(totals.rows * length, 1)


def _split(name: str) -> tuple[str, int]:
    """`fixed_length:128` -> ("fixed_length", 128); any other name -> (name, 1)."""
    if not isinstance(name, str):
        raise RecipeError(f"reduce {name!r}: expected a text such as token_mean or 'fixed_length:128'")
    kind, colon, length = name.partition(":")
    if kind not in LEGAL:
        raise RecipeError(f"no reduction named {name!r}{nearest(kind, LEGAL)}")
    if kind != "fixed_length":
        if colon:
            raise RecipeError(f"reduce {name!r}: {kind!r} takes no length")
        return kind, 1
    if not length.isdigit() or int(length) < 1:
        raise RecipeError(
            f"reduce {name!r}: needs its constant length, e.g. 'fixed_length:128' (the recipe's max_tokens)"
        )
    return kind, int(length)


def live_units(batch: Batch, unit: Unit) -> Tensor:
    """(U,) bool: units with at least one masked-in token in each row (pairs) or in any row (groups)."""
    import torch

    live = batch.mask.any(-1)
    if unit == "pair":
        return live[0::2] & live[1::2]
    if unit == "group":
        _, where = torch.unique(batch.group, return_inverse=True)
        return (
            torch.zeros(int(where.max()) + 1 if len(where) else 0, device=live.device).index_add(
                0, where, live.float()
            )
            > 0
        )
    return live
