"""Static checks of a section `fit`: its objectives fit the groups and the model that they train."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from difflib import get_close_matches
from typing import Protocol

from ratchet.components.errors import RecipeError
from ratchet.components.models.outputs import OUTPUTS
from ratchet.components.piece import catalogue, describe
from ratchet.components.recipes.check_signature import check_signature
from ratchet.components.recipes.conform import known_keys
from ratchet.components.recipes.schema import Fit, Spec
from ratchet.components.training.reduce import legal

SHOWN = 3
"""Pieces that an error names, of those that write a missing column."""


class Groups(Protocol):
    """The groups that objectives read: their columns, and whether they are preference pairs."""

    columns: set[str]
    pairs: bool


def objectives_of_pairs() -> str:
    """Names of the objectives that compare a chosen with a rejected answer, as a hint."""
    found = catalogue("objective").items()
    return ", ".join(sorted(name for name, description in found if description.unit == "pair"))


def objectives_of_labels() -> str:
    """Names of the objectives that read single answers with a label, as a hint."""
    found = catalogue("objective").items()
    return ", ".join(sorted(name for name, description in found if "label" in description.reads))


def check_fit(
    fit: Fit,
    flow: Groups,
    where: str,
    *,
    role: str = "policy",
    untrained: bool = False,
    gives: Collection[str] = OUTPUTS["policy"],
) -> None:
    known_keys(fit.updates, [role], f"{where}.updates")
    if fit.epochs < (0 if untrained else 1):
        raise RecipeError(
            f"{where}.epochs: expected 1 or more, got {fit.epochs}"
            f"{'' if untrained else ' (0 only for a reward model with linear_probe)'}"
        )
    if not any(fit.updates.values()):
        known = catalogue("objective").items()
        fitting = sorted(name for name, description in known if description.outputs <= frozenset(gives))
        raise RecipeError(
            f"{where}.updates: no objective; write `{role}: [{{name: ...}}]` with one of {', '.join(fitting)}"
        )
    for role, parts in fit.updates.items():
        at = f"{where}.updates.{role}"
        labels = [spec["label"] for spec in parts]
        if twice := next((label for label in labels if labels.count(label) > 1), None):
            raise RecipeError(
                f"{at}: two objectives have the label {twice!r}, which identifies "
                "metrics and state; give each its own `label`"
            )
        trained = describe("adapter", fit.adapter["name"]).outputs
        for spec in parts:
            _check_objective(spec, flow, at, role, gives)
            needs = describe("objective", spec["name"]).outputs
            if trained and (missing := sorted(needs - trained)):
                raise RecipeError(
                    f"{where}.adapter: {fit.adapter['name']!r} trains {', '.join(sorted(trained))} only, but "
                    f"{spec['name']!r} needs {', '.join(missing)}; use another adapter, such as lora"
                )


def check_validated(fit: Fit, where: str) -> None:
    """Validation losses are comparable over the steps: no objective has a schedule."""
    for role, parts in fit.updates.items():
        for i, spec in enumerate(parts):
            varies = next((key for key, value in spec.items() if isinstance(value, Mapping)), None)
            if fit.validate_every and varies:
                raise RecipeError(
                    f"{where}.updates.{role}[{i}].{varies}: early stopping compares validation losses, which "
                    "a schedule changes whatever the model learns; use a number, or set "
                    f"{where}.validate_every to 0"
                )


def _check_objective(spec: Spec, flow: Groups, at: str, role: str, gives: Collection[str]) -> None:
    """Columns, outputs, reduction and groups of an objective."""
    description = describe("objective", spec["name"])
    check_signature(description, at)
    check_reads(description.named("reads", spec), flow.columns, spec["name"], at)
    kind = role.removesuffix("_model")
    if missing := sorted(description.outputs - set(gives)):
        hint = "; set online.value_head to true, with `cadence: step`" if missing == ["values"] else ""
        raise RecipeError(
            f"{at}: {spec['name']!r} needs {', '.join(missing)}, but the "
            f"{kind} model outputs {', '.join(sorted(gives))}{hint}"
        )
    if description.value_head and "values" not in gives:
        raise RecipeError(
            f"{at}: {spec['name']!r} reads the value head, which this {kind} model does not have; set "
            f"{at.partition('.fit.')[0]}.value_head to true, with `cadence: step`"
        )
    if description.readers and "logprobs" not in gives:
        raise RecipeError(
            f"{at}: {spec['name']!r} reads {', '.join(sorted(description.readers))} from a language "
            f"model, but this trains a {kind} model"
        )
    _check_restrictions(spec, flow, at)
    try:
        problem = legal(spec["reduce"], description.unit)
    except RecipeError as unknown:
        problem = str(unknown)
    if problem:
        raise RecipeError(f"{at}: {spec['name']!r}: {problem}")
    if description.unit == "pair" and not flow.pairs:
        raise RecipeError(
            f"{at}: {spec['name']!r} compares a chosen with a rejected answer, but its input has "
            "no pairs; add a "
            "selector that makes pairs, such as best_worst, or use a split of pairs"
        )
    if (
        flow.pairs
        and ("logprobs" in description.outputs or description.readers)
        and description.unit != "pair"
        and not description.reads
    ):
        raise RecipeError(
            f"{at}: {spec['name']!r} would also train on the rejected answers of the pairs; use "
            "'preference.chosen', "
            "or a selector such as best_of_n instead of one that makes pairs"
        )


def _check_restrictions(spec: Spec, flow: Groups, at: str) -> None:
    """`weight_column` and `where` of an objective."""
    description = describe("objective", spec["name"])
    if "weight_column" in spec:
        check_reads(frozenset({spec["weight_column"]}), flow.columns, f"{spec['name']}.weight_column", at)
        if description.unit == "group":
            raise RecipeError(
                f"{at}: {spec['name']!r} has one term per group, but `weight_column` weights steps, "
                "rows or pairs"
            )
    if "where" in spec:
        check_reads(frozenset({spec["where"]}), flow.columns, f"{spec['name']}.where", at)
        if description.means:
            raise RecipeError(
                f"{at}: {spec['name']!r} reads means over other answers, which `where` does not "
                "restrict; remove it, or use a selector"
            )


def check_reads(reads: frozenset[str], have: set[str], name: str, where: str) -> None:
    """`RecipeError` for columns that a piece `name` reads and that are not in `have`: it names a column of
    similar name, or pieces that write it.
    """
    missing = sorted(reads - have)
    if missing:
        hints = "".join(_column_hint(column, have, where) for column in missing)
        raise RecipeError(
            f"{where}: {name!r} reads {missing}, which no earlier piece writes (available: {sorted(have)})"
            f"{hints}"
        )


def _column_hint(column: str, have: set[str], where: str) -> str:
    if alike := get_close_matches(column, have, 1, 0.8):
        return f"; did you mean {alike[0]!r}?"
    found = [
        (f"{{name: {name}{options}}}", slot)
        for slot in ("annotate", "select")
        for name, piece in catalogue(slot).items()
        if (options := _options_that_write(column, piece.writes)) is not None
    ]
    if not found:
        return ""
    slot = found[0][1]
    names = [text for text, of in found if of == slot]
    others = f", or {len(names) - SHOWN} others" if len(names) > SHOWN else ""
    into = (
        "a selector" if slot == "select" else f"in `annotate`{' or `prepare`' if '.updates' in where else ''}"
    )
    return f"; {column!r} is written by {', '.join(names[:SHOWN])}{others} ({into})"


def _options_that_write(column: str, templates: Collection[str]) -> str | None:
    """Options, as in `, model: reference`, with which a piece that writes `templates` writes the column; None
    if there are none. A template that begins with an option could be any column.
    """
    for template in templates:
        pattern = re.sub(r"\\{(\w+)\\}", r"(?P<\1>[\\w-]+)", re.escape(template))
        if not template.startswith("{") and (match := re.fullmatch(pattern, column)):
            return "".join(f", {option}: {value}" for option, value in match.groupdict().items())
    return None
