"""`ratchet plan`: the stages that a run would execute, its batch sizes and token counts."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from ratchet.flows.commands.estimate import check_fits, print_estimate
from ratchet.flows.commands.options import OUT, Home, Json, Limit, ProfileOption, RecipeName, Set, print_json

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
    from ratchet.flows.display import open_console
    from ratchet.tasks.pipeline import Pipeline

    console, pipeline = (
        open_console(),
        Pipeline.open(recipe, home=home, overrides=set, profile=profile, limit=limit),
    )
    if as_json:
        return print_json(_as_json(pipeline, estimate))
    print_plan(console, pipeline, full=not estimate)
    (print_estimate(console, pipeline) if estimate else check_fits(pipeline))


def _as_json(pipeline: Any, estimate: bool) -> dict[str, Any]:
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
            stages[cost.stage.name] |= {
                "bytes": cost.bytes,
                "disk": cost.disk,
                "learnt": cost.learn,
                "scored": cost.score,
                "sampled": cost.sample,
                "seconds": cost.seconds,
            }
    return {
        "run": pipeline.run.name,
        "quantities": quantities(pipeline.recipe, pipeline.profile),
        "stages": stages,
    }


def print_plan(console: Any, pipeline: Any, *, full: bool = False) -> None:
    from ratchet.flows.display import table_of

    console.print(sizes(pipeline.recipe, pipeline.profile))
    statuses = pipeline.status()
    done = sum(s.state == "done" for s in statuses)
    if full:
        table = table_of("stage", "would", "key", "from")
        for s in statuses:
            table.add_row(
                s.stage.name,
                WOULD[s.state],
                s.stage.key[:12],
                ", ".join(dict.fromkeys(s.stage.inputs.values())),
            )
        console.print(table)
    console.print(
        f"Run {pipeline.run.name}: {done} of {len(statuses)} stages are finished, {len(statuses) - done} "
        "to do."
    )


def sizes(recipe: Any, profile: Any) -> Any:
    """The table of `quantities`."""
    from ratchet.flows.display import table_of

    table = table_of("quantity", "value", right=["value"])
    for name, value in quantities(recipe, profile).items():
        table.add_row(name, str(value))
    return table


def quantities(recipe: Any, profile: Any) -> dict[str, Any]:
    """Batch sizes, counts and token limits by unit, derived from the recipe and its profile."""
    from ratchet.components.piece import describe

    found: dict[str, Any] = {}

    def row(name: str, value: Any) -> None:
        if value is not None:
            found[name] = value

    def fit(section: Any, what: str, rest: str, epochs: str) -> str:
        """The rows of a fit; what its batch counts: pairs where an objective reads them, `rest` otherwise."""
        units = {
            describe("objective", spec["name"]).unit
            for specs in section.fit.updates.values()
            for spec in specs
        }
        counted = "pairs" if "pair" in units else rest
        row(f"{what} {counted} per step", section.fit.batch)
        row(f"max {what} {counted}", getattr(section, "limit", None))
        row(f"max {what} steps", section.fit.max_steps)
        row(epochs, section.fit.epochs)
        return counted

    if recipe.sft:
        fit(recipe.sft, "SFT", "conversations", "SFT epochs")
    if recipe.reward:
        row("reward models", recipe.reward.members)
        if recipe.reward.fit.epochs:
            fit(recipe.reward, "reward", "pairs", "reward epochs")
        else:
            row("max reward pairs", recipe.reward.limit)
            row("reward epochs", "0 (linear probe only)")
    if recipe.offline:
        fit(recipe.offline, "offline", "groups", "offline epochs")
    if recipe.online:
        online = recipe.online
        count = online.rollout.get("responses_per_prompt")
        row("rounds", online.rounds)
        row("prompts per round", online.prompts_per_round)
        row("responses per prompt", count)
        if count:
            row("responses per round", online.prompts_per_round * count)
        row("max tokens per response", online.rollout.get("max_tokens"))
        if fit(online, "online", "prompts", "epochs per round") == "prompts" and count:
            row("max online responses per step", online.fit.batch * count)
    if recipe.evaluate:
        row("held-out prompts", recipe.evaluate.prompts)
        row("responses per held-out prompt", recipe.evaluate.responses_per_prompt)
        row("max tokens per held-out response", recipe.evaluate.max_tokens)
    row("training ranks", profile.ranks)
    row("tokens per forward pass and rank", profile.tokens_per_microbatch)
    return found
