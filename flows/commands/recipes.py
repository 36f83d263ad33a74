"""`ratchet recipes`: list, explain, check, pieces, schema."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from rich.text import Text

from ratchet.flows.commands.options import OUT, Home, Json, Limit, ProfileOption, RecipeName, Set, print_json
from ratchet.flows.commands.plan import sizes
from ratchet.flows.display import open_console, table_of

app = typer.Typer(help="List, explain and check recipes and what they name.", no_args_is_help=True)


@app.command("list")
def list_recipes(as_json: Json = False) -> None:
    """List the recipes that ship with Ratchet by family, with their paper and the stored verdict on their
    claim; `ratchet claims --status` tells which verdicts are stale.
    """
    from ratchet.components.recipes.recipe import written
    from ratchet.flows.catalogue import families, family
    from ratchet.flows.claim_records import read

    recipes, stored = written(), read()

    def verdict(name: str) -> str:
        if not recipes[name].claim:
            return ""
        return stored[name].verdict if name in stored else "not measured"

    if as_json:
        return print_json(
            [
                {
                    "recipe": name,
                    "family": family(loaded),
                    "paper": loaded.paper,
                    "about": loaded.about,
                    "verdict": verdict(name),
                }
                for name, loaded in recipes.items()
            ]
        )
    rows: list[tuple[Any, ...]] = []
    for title, members in families(recipes).items():
        rows.append((Text(title, "bold"),))
        rows += ((f"  {one}", recipes[one].paper, verdict(one), recipes[one].about) for one in members)
    open_console().print(table_of(("recipe", "paper", "claim", "about"), rows))


@app.command()
def explain(
    recipe: RecipeName,
    set: Set = [],  # noqa: B006
    profile: ProfileOption = None,
    defaults: Annotated[
        bool, typer.Option("--defaults", help="Print the recipe as YAML instead, with every default.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Print what a recipe is: paper, pieces, equation, its difference from its base, and what was measured of
    its claim; then its derived batch sizes and token counts.
    """
    from ratchet.components.recipes.check_warnings import not_required_accuracy
    from ratchet.components.recipes.plain_values import plain
    from ratchet.components.recipes.read_splits import read_splits
    from ratchet.components.recipes.recipe import dump, load
    from ratchet.components.recipes.splits import SHARES
    from ratchet.flows.catalogue import details, summary
    from ratchet.flows.claim_records import read

    loaded, chosen = load(recipe, overrides=set, profile=profile)
    if as_json:
        return print_json(plain({"recipe": loaded, "profile": chosen}))
    if defaults:
        return typer.echo(dump(loaded, chosen))  # as it is: what Rich prints it wraps
    console, stored = open_console(), read()
    for line in [*summary(loaded, stored), "", *details(loaded, stored), ""]:
        console.print(line, markup=False, soft_wrap=True)
    console.print(sizes(loaded, chosen))
    for sentence in not_required_accuracy(loaded):
        console.print(f"WARNING: {sentence}", markup=False, soft_wrap=True)
    if loaded.data.splits is None:
        read_ones = read_splits(loaded)
        shares = {name: share for name, share in SHARES.items() if name in read_ones}
        text = ", ".join(f"{name} {share / sum(shares.values()):.2f}" for name, share in shares.items())
        typer.echo(f"data.splits: null stands for {text}, as far as the data can fill them")
    typer.echo(f"every default: ratchet recipes explain {recipe} --defaults")


@app.command("check")
def check_recipes(
    recipe: Annotated[str | None, typer.Argument(help="A name or file; all that ship when left out.")] = None,
    set: Set = [],  # noqa: B006
    profile: ProfileOption = None,
    home: Home = OUT,
    limit: Limit = None,
    show: Annotated[
        int,
        typer.Option(
            "--show", min=0, help="Print this many examples of each split of local data, as they were read."
        ),
    ] = 0,
    as_json: Json = False,
) -> None:
    """Check a recipe: keys, pieces, options, the flow of columns, the files and registered models that it
    names. Of local data, prints the size of each split, what is left out, and warnings; with --show the first
    examples of each split, what is in a loss marked `>` (`+` chosen, `-` rejected).
    """
    from ratchet.components.recipes.check_data import check_files
    from ratchet.components.recipes.check_records import Checked
    from ratchet.components.recipes.plain_values import plain
    from ratchet.components.recipes.recipe import inherited_sizes, load, names
    from ratchet.tasks.registry.registry_sources import resolved

    reports: dict[str, Checked] = {}
    for name in [recipe] if recipe else names():
        loaded, chosen = load(name, overrides=set, profile=profile, limit=limit)
        reports[name] = check_files(loaded, show, inherited_sizes(name, set)) if recipe else Checked()
        if recipe:
            resolved(loaded, chosen, home)
        if not as_json:
            typer.echo("\n  ".join([f"{name}: ok", *reports[name].lines()]))
    if as_json:
        print_json({name: {"check": "ok", **plain(checked)} for name, checked in reports.items()})


@app.command()
def pieces(
    slot: Annotated[
        str | None,
        typer.Argument(help="A slot, such as objective, or a folder, such as rewards; all when left out."),
    ] = None,
    as_json: Json = False,
) -> None:
    """List what a recipe can name: the slots, with the keys that name their pieces, or the pieces of a slot,
    one line each, with their options and defaults.
    """
    from ratchet.components.piece import SLOTS
    from ratchet.flows.piece_catalogue import NAMED_IN, headline, lines_of, pieces_of

    if slot is None:
        if as_json:
            return print_json({name: list(pieces_of(name)) for name in SLOTS})
        rows = (
            (name, ", ".join(folders), len(pieces_of(name)), NAMED_IN[name])
            for name, folders in SLOTS.items()
        )
        return open_console().print(
            table_of(("slot", "folders", "pieces", "named in"), rows, right=("pieces",))
        )
    if as_json:
        return print_json(
            {
                name: {
                    "about": headline(one),
                    "options": {
                        key: {
                            "type": option.annotation,
                            **({} if option.required else {"default": option.default}),
                        }
                        for key, option in one.options.items()
                    },
                }
                for name, one in pieces_of(slot).items()
            }
        )
    console = open_console()
    for line in lines_of(slot):
        console.print(line, markup=False, soft_wrap=True)
    return None


@app.command()
def schema() -> None:
    """Print the JSON schema of recipe files, for completion and hints in editors (docs/recipes.md)."""
    from ratchet.components.recipes.json_schema import recipe_schema

    print_json(recipe_schema())
