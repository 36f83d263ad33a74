"""`ratchet compare`: two existing runs, or recipes run with several seeds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from ratchet.components.errors import RecipeError, nearest
from ratchet.flows.commands.options import OUT, Home, Json, ProfileOption, Set, print_json
from ratchet.flows.display import Display, open_console, table_of
from ratchet.flows.startup import servers, set_environment_defaults
from ratchet.tasks.tracking.outcome import find_run, run_at, run_files


def compare(
    names: Annotated[list[str], typer.Argument(help="Two runs (name or directory), or recipes.")],
    home: Home = OUT,
    seeds: Annotated[int, typer.Option(min=1, help="For recipes: number of seeds.")] = 3,
    first_seed: Annotated[
        int,
        typer.Option(
            min=0, help="For recipes: the first seed; take others than those that settings were chosen by."
        ),
    ] = 0,
    set: Set = [],  # noqa: B006
    profile: ProfileOption = None,
    metric: Annotated[
        str | None,
        typer.Option(help="For recipes: per-prompt metric. Default: that of their claim, or the first."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Compare two runs: differences in recipe, code, packages and stage outputs, and in results with paired
    intervals. Or run recipes with several seeds and compare a metric, with intervals over seeds and prompts.
    """
    from ratchet.components.recipes.recipe import load
    from ratchet.flows.compare import compare as run_all
    from ratchet.flows.compare import metric_of

    if runs := [name for name in names if run_at(name, home) is not None]:
        if len(names) != 2:
            raise RecipeError(
                f"{runs[0]!r} is a run, and runs are compared two by two; got {len(names)} names"
            )
        return _runs(names[0], names[1], home, as_json)
    _check_known(names, home)
    # validate all recipes before the first run
    metric = metric_of({name: load(name, overrides=set, profile=profile)[0] for name in names}, metric)
    set_environment_defaults(home)
    console, wanted = open_console(stderr=as_json), range(first_seed, first_seed + seeds)
    with servers(), Display(console) as display:
        comparison = run_all(names, metric, wanted, home, display, overrides=set, profile=profile)
    if as_json:
        return print_json(comparison)
    rows = (
        (
            name,
            f"{row['mean']:.3f}",
            f"[{row['low']:.3f}, {row['high']:.3f}]",
            " ".join(f"{v:.3f}" for v in row.get("by_seed", [])),
        )
        for name, row in {**comparison["arms"], **comparison["differences"]}.items()
    )
    titles = (comparison["metric"], "mean", "95 % interval", "by seed")
    console.print(table_of(titles, rows, overflow="fold"))


def _check_known(names: Sequence[str], home: Path) -> None:
    """`RecipeError` for a name that is neither a run nor a recipe, or a recipe that is named twice."""
    from ratchet.components.recipes.recipe import YAML
    from ratchet.components.recipes.recipe import names as shipped

    if repeated := [name for name in names if names.count(name) > 1]:
        raise RecipeError(f"{repeated[0]} is named twice, which would count each of its seeds twice")
    for name in names:
        if not name.endswith(YAML) and name not in (known := shipped()):
            runs = [file.parent.name for file in run_files(home)]
            raise RecipeError(
                f"{name!r} is neither a run under {home / 'runs'} nor a recipe"
                f"{nearest(name, [*runs, *known])}"
            )


def _runs(first: str, other: str, home: Path, as_json: bool) -> None:
    from ratchet.tasks.tracking.differences import differences

    paths = find_run(first, home), find_run(other, home)
    compared = differences(*paths)
    if as_json:
        return print_json(asdict(compared))
    console = open_console()
    names = [path.resolve().name for path in paths]
    scores = (
        (
            score,
            f"{a:.4g}",
            f"{b:.4g}",
            gap
            if isinstance(gap, str)
            else f"{gap['mean']:+.4g} [{gap['low']:+.4g}, {gap['high']:+.4g}], {gap['n']} prompts",
        )
        for score, a, b, gap in compared.scores
    )
    for titles, rows in (
        (("recipe", *names), compared.recipe),
        (("code", *names), compared.code),
        (("package", *names), compared.packages),
        (("stage", "", "because of"), compared.stages),
        (("score", *names, "other − first, 95 % interval over prompts"), list(scores)),
        (("metric", *names), compared.metrics),
    ):
        if rows:
            console.print(table_of(titles, rows, overflow="fold"), "")
        elif titles[0] in ("recipe", "code", "package"):
            console.print(f"{titles[0]}: no difference")
