"""Objectives of an update, built from their resolved specs, and running means of their metrics."""

from __future__ import annotations

import importlib
import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from ratchet.components.piece import build, describe
from ratchet.components.recipes.piece_source import Unit
from ratchet.components.training.reduce import live_units
from ratchet.components.types import Batch, Outputs, Read, Terms

if TYPE_CHECKING:
    from torch import Tensor

    from ratchet.components.protocols import Schedule

OWN = ("weight", "reduce", "label", "weight_column", "where")


@dataclass(frozen=True)
class Part:
    """One objective of an update with its reduction, weight and schedules. `where` restricts it to the steps
    or rows at which that column is positive.
    """

    label: str
    objective: Callable[..., Terms]
    reduce: str
    weight: float | Schedule
    unit: Unit
    outputs: frozenset[str]
    schedules: Mapping[str, Schedule] = field(default_factory=dict)
    weight_column: str | None = None
    where: str | None = None
    means: Mapping[str, Callable[..., Tensor]] = field(default_factory=dict)
    readers: tuple[Read, ...] = ()

    @property
    def requests(self) -> frozenset[str | Read]:
        """Outputs to request from the learner now: readers have the values that schedules have now."""
        return self.outputs | {*self._reads()}

    def _reads(self) -> list[Read]:
        return [
            replace(
                read,
                options=tuple(
                    (name, self.schedules[name].value() if name in self.schedules else value)
                    for name, value in read.options
                ),
            )
            for read in self.readers
        ]

    def __call__(self, out: Outputs, batch: Batch) -> Terms:
        """The terms of a batch, from the outputs in `requests`."""
        if self.readers:
            own = {name: out.by_name[name] for name in self.outputs}
            out = Outputs({**own, **{read.name: out.by_name[read] for read in self._reads()}})
        terms = self.objective(
            out, batch, **{name: schedule.value() for name, schedule in self.schedules.items()}
        )
        if self.weight_column is None:
            return terms
        column = batch[self.weight_column]  # a pair's weight is that of its chosen row
        return terms.weighted(self.weight_column, batch.pair(column)[0] if self.unit == "pair" else column)

    def restricted(self, batch: Batch) -> Batch:
        """The batch with the loss mask of this objective: that of the batch, and `where` positive. The terms
        and the denominators of its reduction both use this mask.
        """
        if self.where is None:
            return batch
        chosen = batch[self.where] > 0
        return replace(batch, mask=batch.mask & (chosen if chosen.dim() == 2 else chosen[:, None]))

    def memories(self) -> dict[str, Schedule]:
        own = {} if isinstance(self.weight, (int, float)) else {"weight": self.weight}
        return {**own, **self.schedules}


def parts(specs: Sequence[Mapping[str, Any]]) -> list[Part]:
    """Build the objectives of a role from their resolved specs. A number given as {name: ...} becomes a
    schedule.
    """
    built = []
    for spec in specs:
        description = describe("objective", spec["name"])
        schedules = {
            k: build("schedule", v)
            for k, v in spec.items()
            if k not in OWN and isinstance(v, Mapping) and "name" in v
        }
        fixed = {k: v for k, v in spec.items() if k not in schedules and k not in OWN}
        weight, module = spec["weight"], importlib.import_module(description.module)
        known = {name: option.default for name, option in description.options.items()} | fixed
        built.append(
            Part(
                label=spec["label"],
                objective=build("objective", fixed),
                reduce=spec["reduce"],
                weight=build("schedule", weight) if isinstance(weight, Mapping) else float(weight),
                unit=description.unit,
                outputs=description.outputs,
                schedules=schedules,
                weight_column=spec.get("weight_column"),
                where=spec.get("where"),
                means={name: getattr(module, name) for name in sorted(description.means)},
                readers=tuple(
                    Read(name, function, tuple((option, known[option]) for option in _own_options(function)))
                    for name in sorted(description.readers)
                    for function in [getattr(module, name)]
                ),
            )
        )
    return built


def _own_options(function: Callable[..., Any]) -> list[str]:
    """Names of the keyword-only arguments of a reader."""
    given = inspect.signature(function).parameters.values()
    return [one.name for one in given if one.kind is one.KEYWORD_ONLY]


class Meter:
    """Running means of unreduced metrics: (B,T) values over the loss mask, (U,) values over the units of the
    objective that are not masked out, others over their elements.
    """

    def __init__(self) -> None:
        self.sums: dict[str, float] = {}
        self.counts: dict[str, float] = {}

    def add(self, name: str, values: Tensor, batch: Batch, unit: Unit) -> None:
        values = values.detach().float()
        live = live_units(batch, unit)
        if values.shape == batch.mask.shape:
            total, number = (values * batch.mask).sum(), batch.mask.sum()
        elif values.shape == live.shape:
            total, number = values.where(live, 0.0).sum(), live.sum()
        else:
            total, number = values.sum(), values.new_tensor(values.numel())
        self.sums[name] = self.sums.get(name, 0.0) + float(total)
        self.counts[name] = self.counts.get(name, 0.0) + float(number)

    def become(self, meters: Sequence[Meter]) -> None:
        """Replace by the sum over all ranks' meters."""
        names = dict.fromkeys(name for meter in meters for name in meter.sums)
        self.sums, self.counts = (
            {name: math.fsum(getattr(meter, what).get(name, 0.0) for meter in meters) for name in names}
            for what in ("sums", "counts")
        )

    def means(self) -> dict[str, float]:
        return {name: self.sums[name] / self.counts[name] for name in self.sums if self.counts[name]}


def memories(updates: Mapping[str, Sequence[Part]]) -> dict[str, Schedule]:
    """All schedules of all objectives, keyed for checkpoints as `role.label.option.class`."""
    return {
        f"{role}.{p.label}.{name}.{type(schedule).__name__}": schedule
        for role, ps in updates.items()
        for p in ps
        for name, schedule in p.memories().items()
    }
