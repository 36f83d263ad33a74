"""`ratchet plan --estimate`: memory, disk, tokens, time and cost per stage."""

from __future__ import annotations

from math import inf, isnan, nan
from typing import TYPE_CHECKING, Any

from rich.console import Console

from ratchet.components.errors import RecipeError
from ratchet.flows.display import print_facts, table_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ratchet.components.estimates.cost import Cost
    from ratchet.tasks.pipeline import Pipeline


def check_fits(pipeline: Pipeline) -> None:
    """`RecipeError` if the profile has too little memory. Skipped while the model's size is unknown."""
    from ratchet.tasks.machine.calibration import costs_of, model_shape

    try:
        model_shape(pipeline)
    except RecipeError:
        return  # not downloaded yet: the size is unknown
    costs, _, _ = costs_of(pipeline, measured=False)
    _refuse_too_large(pipeline, costs)


def _refuse_too_large(pipeline: Pipeline, costs: Sequence[Cost]) -> None:
    """`RecipeError` if the profile has too little memory, or the machine too little disk. Where the memory is
    that of the machine, the data are curated first: until then every text has the greatest length that the
    recipe allows, which may be far too much.
    """
    from ratchet.components.estimates.capacity import check_capacity
    from ratchet.tasks.machine.calibration import memory_and_free_disk

    memory, disk = memory_and_free_disk(pipeline.store.home)
    known = pipeline.store.get("curated", pipeline.stages["curated"].key) is not None
    check_capacity(pipeline.profile, costs, (memory if known else inf, disk))


def print_estimate(console: Console, pipeline: Pipeline) -> None:
    """Print the table and its sums. `RecipeError` after it if the profile has too little memory."""
    from ratchet.components.estimates.capacity import gb
    from ratchet.tasks.machine.calibration import costs_of, observed

    costs, rates, shape = costs_of(pipeline, measured=True)
    hardware, seen = pipeline.profile.hardware, observed(pipeline)
    made = {s.stage.name for s in pipeline.status() if s.state == "done"}
    priced = hardware.price_per_hour is not None
    numbers = ["memory", "disk", "trained", "scored", "sampled", "time"]
    numbers += [hardware.currency] if priced else []
    rows = []
    for cost in costs:
        most = max(cost.memory, key=lambda name: (name != "process", cost.memory[name]))
        row = [cost.stage.name, gb(cost.bytes), gb(cost.disk) if cost.disk else ""]
        row += [_tokens(v) for v in (cost.learn, cost.score, cost.sample)]
        row.append("done" if cost.stage.name in made else _time(cost.seconds))
        row += [_amount(hardware, nan if cost.stage.name in made else cost.seconds)] if priced else []
        rows.append([*row, f"{most} {gb(cost.memory[most])}" if cost.tokens != 0.0 else ""])
    console.print(table_of(("stage", *numbers, "largest"), rows, right=numbers))
    todo = [cost for cost in costs if cost.stage.name not in made]
    unknown = [cost.stage.name for cost in todo if isnan(cost.seconds)]
    timed = sum(cost.seconds for cost in todo if not isnan(cost.seconds))
    on = f"one of {hardware.devices} × {hardware.device}" if hardware.devices > 1 else hardware.device
    host = max(cost.host for cost in costs)
    more = f", plus stages whose time is unknown: {', '.join(unknown)}" if unknown else ""
    lines = {
        "model": f"{shape.parameters / 1e6:,.1f} million parameters, {shape.layers} layers of {shape.hidden}",
        "peak": f"{gb(max(c.bytes for c in costs))} on {on}"
        + (f", {gb(host)} of host memory" if host else ""),
        "disk": f"{gb(sum(c.disk for c in todo))} to write",
        "time": _time(timed) + more
        if rates
        else "unknown until the model is downloaded and measured on this machine",
        "cost": _price(hardware, timed) if rates else "unknown without the time",
        "answers": f"counted at their mean length in {seen.run or 'this run'}"
        if seen.answers
        else "counted at their maximum length; after a first run, at the mean length there",
        "rates": _rates(rates, hardware),
    }
    print_facts(console, lines.items())
    _refuse_too_large(pipeline, costs)


def _tokens(count: float) -> str:
    if isnan(count):
        return "?"
    return "" if not count else f"{count / 1e6:.1f} M" if count >= 1e6 else f"{count / 1e3:.1f} k"


def _time(seconds: float) -> str:
    if isnan(seconds):
        return "?"
    return (
        f"{seconds / 3600:.1f} h"
        if seconds >= 5400
        else f"{seconds / 60:.0f} min"
        if seconds >= 90
        else f"{seconds:.0f} s"
    )


def _amount(hardware: Any, seconds: float) -> str:
    return "" if isnan(seconds) else f"{seconds / 3600 * hardware.price_per_hour:,.2f}"


def _price(hardware: Any, seconds: float) -> str:
    hours, parts = seconds / 3600, []
    if hardware.price_per_hour is not None:
        parts.append(
            f"{_amount(hardware, seconds)} {hardware.currency} at {hardware.price_per_hour:g} "
            f"{hardware.currency} an hour"
        )
    if hardware.watts is not None:
        parts.append(f"{hours * hardware.watts / 1000:,.2f} kWh at {hardware.watts:g} W")
    return ", ".join(parts) or "unknown: the profile states no hardware.price_per_hour or watts"


def _rates(rates: Any, hardware: Any) -> str:
    if rates is None:
        return "none"
    speeds = [f"{speed:,.0f} trained ({name})" for name, speed in rates.learn.items()]
    speeds += [f"{rates.score:,.0f} scored", f"{rates.sample:,.0f} sampled tokens a second"]
    speeds += [f"{1000 * time:,.0f} ms an update ({name})" for name, time in rates.update.items()]
    where = (
        "measured on this machine"
        if rates.source == "measured"
        else f"computed from the profile's figures for {hardware.device}, not measured ({rates.source})"
    )
    return ", ".join([*speeds, where])
