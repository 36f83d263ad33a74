"""`ratchet recipes`: list, explain, check, schema."""

from __future__ import annotations

from typing import Annotated

import typer

from ratchet.flows.commands.options import OUT, Home, Json, Limit, ProfileOption, RecipeName, Set, print_json
from ratchet.flows.commands.plan import sizes

app = typer.Typer(help="List, explain and check recipes.", no_args_is_help=True)


@app.command("list")
def list_recipes(as_json: Json = False) -> None:
    """List the recipes that ship with Ratchet."""
    from ratchet.components.recipes.recipe import load, names
    from ratchet.flows.display import open_console, table_of

    recipes = {name: load(name)[0] for name in names()}
    if as_json:
        return print_json(
            [{"recipe": name, "paper": one.paper, "about": one.about} for name, one in recipes.items()]
        )
    table = table_of("recipe", "paper", "about")
    for name, loaded in recipes.items():
        table.add_row(name, loaded.paper, loaded.about)
    open_console().print(table)


@app.command()
def explain(recipe: RecipeName, set: Set = [], profile: ProfileOption = None, as_json: Json = False) -> None:  # noqa: B006
    """Print a recipe with every default written out, and its derived batch sizes and token counts."""
    from ratchet.components.recipes.recipe import dump, load, plain
    from ratchet.flows.display import open_console

    loaded, chosen = load(recipe, overrides=set, profile=profile)
    if as_json:
        return print_json(plain({"recipe": loaded, "profile": chosen}))
    typer.echo(dump(loaded, chosen))  # as it is: what Rich prints it wraps
    open_console(highlight=False).print(sizes(loaded, chosen))


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
    from ratchet.components.recipes.recipe import load, names, plain
    from ratchet.tasks.registry.registry_sources import resolved

    found: dict[str, Checked] = {}
    for name in [recipe] if recipe else names():
        loaded, chosen = load(name, overrides=set, profile=profile, limit=limit)
        found[name] = check_files(loaded, show) if recipe else Checked()
        if recipe:
            resolved(loaded, chosen, home)
        if not as_json:
            typer.echo("\n  ".join([f"{name}: ok", *found[name].lines()]))
    if as_json:
        print_json({name: {"check": "ok", **plain(checked)} for name, checked in found.items()})


@app.command()
def schema() -> None:
    """Print the JSON schema of recipe files, for completion and hints in editors (docs/recipes.md)."""
    from ratchet.components.recipes.json_schema import recipe_schema

    print_json(recipe_schema())
