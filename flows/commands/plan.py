"""`ratchet plan`: the stages that a run would execute, its batch sizes and token counts."""

from __future__ import annotations

from math import isnan
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from ratchet.flows.commands.estimate import check_fits, print_estimate
from ratchet.flows.commands.options import OUT, Home, Json, Limit, ProfileOption, RecipeName, Set, print_json
from ratchet.flows.display import open_console, table_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ratchet.components.recipes.profile import Profile
    from ratchet.components.recipes.schema import Recipe
    from ratchet.tasks.pipeline import Pipeline

WOULD = {"done": "keep", "resume": "continue", "run": "make"}


def plan(
    recipe: RecipeName,
    home: Home = OUT,
    set: Set = [],  # noqa: B006
    profile: ProfileOption = None,
    limit: Limit = None,
    estimate: Annotated[
        bool, typer.Option("--estimate", help="Also estimate memory, disk, tokens, time and cost.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Show what `run` would do, stage by stage. Fails if the profile has too little memory."""
    from ratchet.components.recipes.check_warnings import not_required_accuracy
    from ratchet.tasks.pipeline import Pipeline

    pipeline = Pipeline.open(recipe, home=home, overrides=set, profile=profile, limit=limit)
    if as_json:
        return print_json(_as_json(pipeline, estimate))
    console = open_console()
    print_plan(console, pipeline, full=not estimate)
    for sentence in not_required_accuracy(pipeline.recipe):
        console.print(f"WARNING: {sentence}", markup=False, soft_wrap=True)
    if estimate:
        print_estimate(console, pipeline)
    else:
        check_fits(pipeline)


def _as_json(pipeline: Pipeline, estimate: bool) -> dict[str, Any]:
    stages = {
        s.stage.name: {
            "would": WOULD[s.state],
            "key": s.stage.key,
            "from": list(dict.fromkeys(s.stage.inputs.values())),
        }
        for s in pipeline.status()
    }
    if estimate:
        from ratchet.tasks.machine.calibration import costs_of

        for cost in costs_of(pipeline, measured=True)[0]:
            known = {
                "bytes": cost.bytes,
                "disk": cost.disk,
                "learnt": cost.learn,
                "scored": cost.score,
                "sampled": cost.sample,
                "seconds": cost.seconds,
            }
            stages[cost.stage.name] |= {
                name: None if isnan(number) else number for name, number in known.items()
            }
    return {
        "run": pipeline.run.name,
        "quantities": quantities(pipeline.recipe, pipeline.profile, groups_made(pipeline)),
        "stages": stages,
    }


def print_plan(console: Console, pipeline: Pipeline, *, full: bool = False) -> None:
    """Print batch sizes and counts, with `full` the stages too, and how many stages are finished."""
    console.print(sizes(pipeline.recipe, pipeline.profile, groups_made(pipeline)))
    statuses = pipeline.status()
    done = sum(s.state == "done" for s in statuses)
    if full:
        rows = (
            (one.name, WOULD[s.state], one.key[:12], ", ".join(dict.fromkeys(one.inputs.values())))
            for s in statuses
            if (one := s.stage)
        )
        console.print(table_of(("stage", "would", "key", "from"), rows))
    console.print(
        f"Run {pipeline.run.name}: {done} of {len(statuses)} stages are finished, {len(statuses) - done} "
        "to do."
    )


def groups_made(pipeline: Pipeline) -> dict[str, int]:
    """Number of groups of each split, once the data are curated."""
    made = pipeline.store.get("curated", pipeline.stages["curated"].key)
    return {name: one["groups"] for name, one in made.meta.get("splits", {}).items()} if made else {}


def sizes(recipe: Recipe, profile: Profile, made: Mapping[str, int] | None = None) -> Table:
    """The table of `quantities`."""
    return table_of(("quantity", "value"), quantities(recipe, profile, made).items(), right=["value"])


def quantities(recipe: Recipe, profile: Profile, made: Mapping[str, int] | None = None) -> dict[str, Any]:
    """Batch sizes, counts and token limits by unit, derived from the recipe and its profile. `made`: number
    of groups of the splits, where it is known; without it a number is a maximum.
    """
    from ratchet.components.estimates.sizes import units
    from ratchet.components.recipes.phases import sections
    from ratchet.components.recipes.schema import Learn, Online, Reward

    rows: dict[str, Any] = {}

    def fit(section: Any, what: str, rest: str, epochs: str) -> str:
        """The rows of a fit; what its batch counts: pairs where an objective reads them, `rest` otherwise."""
        counted = "pairs" if "pair" in units(section.fit.updates) else rest
        rows[f"{what} {counted} per step"] = section.fit.batch
        rows[f"max {what} {counted}"] = getattr(section, "limit", None)
        rows[f"max {what} steps"] = section.fit.max_steps
        rows[epochs] = section.fit.epochs
        return counted

    titles = {"sft": "SFT"}
    counts = {"sft": "conversations", "reward": "pairs"}
    for phase in sections(recipe):
        section, name = phase.section, titles.get(phase.name, phase.name)
        prefix = "" if phase.short else f"{name} "
        if isinstance(section, Reward):
            rows[f"{prefix}reward models"] = section.members
            if not section.fit.epochs:
                rows[f"max {name} pairs"] = section.limit
                rows[f"{name} epochs"] = "0 (linear probe only)"
                continue
        if isinstance(section, Learn | Reward):
            counted = "pairs" if isinstance(section, Reward) else counts.get(phase.name, "groups")
            fit(section, name, counted, f"{name} epochs")
        elif isinstance(section, Online):
            count = section.rollout.get("responses_per_prompt")
            rows[f"{prefix}rounds"] = section.rounds
            rows[f"{prefix}prompts per round"] = section.prompts_per_round
            rows[f"{prefix}responses per prompt"] = count
            rows[f"{prefix}responses per round"] = section.prompts_per_round * count if count else None
            rows[f"{prefix}max tokens per response"] = section.rollout.get("max_tokens")
            counted = fit(section, name, "prompts", f"{prefix}epochs per round")
            if counted == "prompts" and count:
                rows[f"max {name} responses per step"] = section.fit.batch * count
    rows["cycles"] = recipe.cycles if recipe.cycle else None
    if recipe.evaluate:
        there = (made or {}).get(recipe.evaluate.data)
        most = recipe.evaluate.prompts
        rows["max held-out prompts" if there is None else "held-out prompts"] = min(most, there or most)
        rows["responses per held-out prompt"] = recipe.evaluate.responses_per_prompt
        rows["max tokens per held-out response"] = recipe.evaluate.max_tokens
    rows["training ranks"] = profile.ranks
    rows["tokens per forward pass and rank"] = profile.tokens_per_microbatch
    return {name: value for name, value in rows.items() if value is not None}
