"""`ratchet claims`: measure what recipes claim against their baselines."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated

import typer

from ratchet.flows.commands.options import OUT, Home, Json, ProfileOption, print_json
from ratchet.flows.startup import set_environment_defaults

if TYPE_CHECKING:
    from ratchet.flows.claim_records import Verdict


def claims(
    names: Annotated[
        list[str] | None,
        typer.Argument(metavar="[RECIPE]...", help="Recipes (default: all shipped recipes with a claim)."),
    ] = None,
    home: Home = OUT,
    workers: Annotated[int, typer.Option(min=1, help="Processes that run stages of the tiny model.")] = 2,
    profile: ProfileOption = None,
    record: Annotated[
        bool,
        typer.Option(
            "--record", help="Write the verdicts to docs/claims.json and the table in docs/claims.md."
        ),
    ] = False,
    stale: Annotated[
        bool, typer.Option("--stale", help="Only claims whose stored verdict is missing or stale.")
    ] = False,
    status: Annotated[
        bool, typer.Option("--status", help="Run nothing; print which stored verdicts are stale.")
    ] = False,
    search: Annotated[
        bool,
        typer.Option(
            "--search",
            help="Check nothing; try a third and three times the learning rate in every arm.",
        ),
    ] = False,
    seeds: Annotated[int, typer.Option(min=1, help="Number of seeds of --search, from 100.")] = 1,
    as_json: Json = False,
) -> None:
    """Check the claims of recipes: run each recipe and its baselines with several seeds, on worker processes
    that stay loaded. Finished stages are reused. Prints each effect with its interval and the verdict: holds,
    does not hold, undecided.
    """
    from ratchet.components.recipes.plain_values import plain
    from ratchet.flows.claim_records import claim_of, claiming, read, states, write
    from ratchet.flows.display import open_console

    stored, wanted = read(), names or claiming()
    if stale or status:
        for name in names or ():
            claim_of(name)
        found = states(stored, wanted)
        if status:
            return _print_status(found, stored, as_json)
        wanted = [name for name in wanted if found[name] != "current"]
    set_environment_defaults(home)
    from ratchet.flows.claims import check_claims

    console = open_console(stderr=as_json, markup=False, soft_wrap=True)

    def progress(line: str) -> None:
        console.print(line, style="dim")

    if search:
        from ratchet.flows import claim_search

        found = claim_search.search(wanted, home=home, seeds=seeds, workers=workers, progress=progress)
        if record:
            claim_search.write(found)
        for one in found:
            console.print(f"{one.recipe}, {one.arm}, {one.section}: {claim_search.results(one)}")
        return print_json([plain(one) for one in found]) if as_json else None

    def on_verdict(verdict: Verdict) -> None:
        if record:
            write([verdict])
        console.print(verdict_line(verdict))

    verdicts = check_claims(
        wanted,
        home=home,
        workers=workers,
        profile=profile,
        on_verdict=on_verdict,
        progress=progress,
    )
    if as_json:
        print_json([plain(one) for one in verdicts])


def verdict_line(verdict: Verdict) -> str:
    """A verdict as one line of text."""
    from ratchet.flows.claim_records import effect

    effects = ", ".join(effect(one) for one in verdict.comparisons.values())
    return (
        f"{verdict.recipe}: {verdict.verdict}. {verdict.claim}: {effects}, {verdict.seeds} seeds, "
        f"{verdict.minutes:.1f} min. {verdict.why}"
    )


def _print_status(states: Mapping[str, str], stored: Mapping[str, Verdict], as_json: bool) -> None:
    if as_json:
        return print_json(states)
    for name, state in states.items():
        verdict = f", {stored[name].verdict}" if name in stored else ""
        typer.echo(f"{name}: {state}{verdict}")
