"""Packing of groups into micro-batches of whole units by token count, without padding; epoch shuffling."""

from __future__ import annotations

import numbers
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ratchet.components.errors import ContractError
from ratchet.components.recipes.piece_source import Unit
from ratchet.components.text.images import images_of
from ratchet.components.types import Batch, Group, Trajectory

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class Row:
    """Trajectory `index` of group number `group`."""

    group: int
    index: int


def order(n: int, epoch: int, seed: int) -> list[int]:
    """Shuffled indices 0..n-1 of an epoch, a function of (seed, epoch) only."""
    import numpy

    return numpy.random.default_rng([seed, epoch]).permutation(n).tolist()


def pack(
    groups: Sequence[Group], *, unit: Unit, tokens: int, dtype: torch.dtype | None = None
) -> list[Batch]:
    """Pack groups, in order, into batches of whole units of about `tokens` tokens. What a row has in common
    with the row before it, from its start, is not counted again; a step of arrays counts as one token.

    A unit longer than `tokens` gets its own batch. Numeric columns that all groups have become tensors of
    `dtype` (default float32): (B,) for scalars, (B,T) for per-token lists. Sampler log-probs become
    `logprobs.sampled` if all rows have them. `ContractError` for unencoded trajectories and for an odd number
    of rows in a group of pairs.
    """
    batches: list[list[list[Row]]] = []
    spent = 0
    before: list[int] = []  # the tokens of the open batch's last row
    for rows in _units(groups, unit):
        cost, last = _cost(groups, rows, before)
        if not batches or spent + cost > tokens:
            cost, last = _cost(groups, rows, [])
            batches.append([])
            spent = 0
        batches[-1].append(rows)
        spent += cost
        before = last
    return [_batch(groups, units, dtype) for units in batches]


def _units(groups: Sequence[Group], unit: Unit) -> Iterable[list[Row]]:
    for number, group in enumerate(groups):
        rows = [Row(number, index) for index in range(len(group.trajectories))]
        for trajectory in group.trajectories:
            steps = {name: len(trajectory.inputs[name]) for name in _payload(trajectory)}
            if set(steps.values()) != {len(trajectory.mask)} or not trajectory.mask:
                found = " and ".join(f"{steps.get(name, 0)} {name}" for name in steps or ("tokens",))
                raise ContractError(
                    f"prompt {group.prompt.id!r}: a trajectory has {found} and a "
                    f"mask of length {len(trajectory.mask)}; encode the group first "
                    "(ratchet.components.text.chat.encode_group)"
                )
        if not rows:
            continue
        if unit == "group":
            yield rows
        elif unit == "pair":
            if len(rows) % 2:
                raise ContractError(
                    f"prompt {group.prompt.id!r}: a pairwise objective needs an even number of "
                    f"trajectories, got {len(rows)}; "
                    "select pairs first (chosen, rejected)"
                )
            yield from ([rows[i], rows[i + 1]] for i in range(0, len(rows), 2))
        else:
            yield from ([row] for row in rows)


def _cost(groups: Sequence[Group], rows: Sequence[Row], before: list[int]) -> tuple[int, list[int]]:
    """Tokens to compute for these rows after a row with tokens `before`, and the tokens of the last of
    them.
    """
    cost = 0
    for row in rows:
        trajectory = groups[row.group].trajectories[row.index]
        if "tokens" not in trajectory.inputs:
            cost, before = cost + len(trajectory.mask), []
            continue
        tokens = list(trajectory.inputs["tokens"])
        cost += len(tokens) - next(
            (i for i, (a, b) in enumerate(zip(before, tokens, strict=False)) if a != b),
            min(len(before), len(tokens)),
        )
        before = tokens
    return cost, before


def _batch(groups: Sequence[Group], units: Sequence[Sequence[Row]], dtype: torch.dtype | None) -> Batch:
    import torch

    rows = [row for unit in units for row in unit]
    paths = [groups[row.group].trajectories[row.index] for row in rows]
    longest = max(len(path.mask) for path in paths)
    mask = torch.zeros(len(rows), longest, dtype=torch.bool)
    for b, path in enumerate(paths):
        mask[b, : len(path.mask)] = torch.tensor(list(path.mask), dtype=torch.bool)
    present = sorted(set.intersection(*(set(groups[row.group].columns) for row in rows)))
    cells = {name: [groups[row.group].columns[name][row.index] for row in rows] for name in present}
    if all(path.logprobs is not None for path in paths):
        cells.setdefault("logprobs.sampled", [path.logprobs for path in paths])
    lengths = [len(path.mask) for path in paths]
    columns = {
        name: _tensor(name, values, lengths, longest, dtype or torch.float32)
        for name, values in cells.items()
    }
    inputs: dict[str, list[Any]] = {
        name: [
            torch.tensor(list(path.inputs[name]), dtype=torch.long if name == "tokens" else torch.float32)
            for path in paths
        ]
        for name in _shared_inputs(groups, paths, rows)
    }
    images = [images_of(groups[row.group].prompt) for row in rows]
    return Batch(
        inputs={**inputs, **({"images": images} if any(images) else {})},
        mask=mask,
        columns={name: column for name, column in columns.items() if column is not None},
        group=torch.tensor([row.group for row in rows]),
        unit=torch.tensor([number for number, unit in enumerate(units) for _ in unit]),
        ids=tuple(groups[row.group].prompt.id for row in rows),
    )


def _shared_inputs(
    groups: Sequence[Group], paths: Sequence[Trajectory], rows: Sequence[Row]
) -> Sequence[str]:
    """Names of the inputs of every row. `ContractError` if some rows have tokens and others actions."""
    first = _payload(paths[0])
    for row, path in zip(rows, paths, strict=True):
        if _payload(path) != first:
            raise ContractError(
                f"prompt {groups[row.group].prompt.id!r}: a trajectory has the inputs {_payload(path)}, and "
                f"others of its batch {first}"
            )
    return first


def _payload(trajectory: Trajectory) -> list[str]:
    """Names of the inputs with a value per step that a model reads: `tokens`, or all others."""
    return ["tokens"] if "tokens" in trajectory.inputs else sorted(trajectory.inputs)


def _tensor(
    name: str, values: Sequence, lengths: Sequence[int], longest: int, dtype: torch.dtype
) -> torch.Tensor | None:
    """(B,) for scalars, (B,T) for per-token lists, None if any value is not numeric."""
    import torch

    if all(isinstance(value, numbers.Real) for value in values):
        return torch.tensor([float(value) for value in values], dtype=dtype)
    if any(
        isinstance(value, (str, bytes)) or value is None or isinstance(value, numbers.Real)
        for value in values
    ):
        return None
    steps = torch.zeros(len(values), longest, dtype=dtype)
    for b, value in enumerate(values):
        value = list(value)
        if any(not isinstance(x, numbers.Real) for x in value):
            return None
        if len(value) != lengths[b]:
            raise ContractError(
                f"column {name!r}: expected one value per token, got {len(value)} values for a trajectory of "
                f"{lengths[b]} tokens"
            )
        steps[b, : len(value)] = torch.tensor(value, dtype=dtype)
    return steps


def row_lengths(batch: Batch) -> list[int]:
    """Steps T_b of every row."""
    return [len(row) for row in batch.inputs["tokens" if "tokens" in batch.inputs else "actions"]]


def widest(units: Sequence[Unit]) -> Unit:
    """The coarsest unit, whose batches keep every finer unit whole: a group contains pairs, a pair contains
    rows.
    """
    return max(units, key=("step", "row", "pair", "group").index)
