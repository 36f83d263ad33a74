"""The `ratchet` command. Heavy imports happen inside the commands."""

from __future__ import annotations

import sys
from gc import freeze  # by name, since `gc` is a command here
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from typer.core import TyperOption

from ratchet.components.errors import BusyError, RatchetError, RecipeError, redacted
from ratchet.flows.commands.certify import certify
from ratchet.flows.commands.chat import chat
from ratchet.flows.commands.claims import claims
from ratchet.flows.commands.compare import compare
from ratchet.flows.commands.deploy import deploy
from ratchet.flows.commands.gc import gc
from ratchet.flows.commands.init import init
from ratchet.flows.commands.label import label
from ratchet.flows.commands.lineage import lineage
from ratchet.flows.commands.machine import doctor, join
from ratchet.flows.commands.models import export, promote, rollback
from ratchet.flows.commands.options import OUT, Home, Limit, ProfileOption, RecipeName, Set, Until
from ratchet.flows.commands.plan import plan, print_plan
from ratchet.flows.commands.recipes import app as recipes_app
from ratchet.flows.commands.reproduce import reproduce
from ratchet.flows.commands.show import print_outcome, runs, show
from ratchet.flows.commands.stage import stage
from ratchet.flows.display import open_console, print_facts
from ratchet.flows.running import Cancelled, environment_error, execute, finished
from ratchet.tasks.process.locks import IfRunning
from ratchet.tasks.process.piece_errors import piece_error

if TYPE_CHECKING:
    from ratchet.tasks.pipeline import Pipeline

app = typer.Typer(
    help="Post-training pipelines: data → SFT → reward model → online RLHF → evaluation → registry.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.add_typer(recipes_app, name="recipes")
_type_in_help = TyperOption.display_type_rich
TyperOption.display_type_rich = lambda option, ctx: "" if option.is_flag else _type_in_help(option, ctx)  # pyright: ignore[reportAttributeAccessIssue]  else help says `--yes <bool>`


def _print_version(value: bool) -> None:
    if value:
        from importlib.metadata import version

        typer.echo(f"ratchet {version('ratchet-rlhf')}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    pass


@app.command()
def run(
    recipe: RecipeName,
    home: Home = OUT,
    set: Set = [],  # noqa: B006
    profile: ProfileOption = None,
    limit: Limit = None,
    until: Annotated[Until, typer.Option(help="Last part to run, after those before it.")] = "register",
    if_running: Annotated[
        IfRunning, typer.Option(help="If another process is executing this run: wait for it, or fail.")
    ] = "wait",
) -> None:
    """Run a recipe. Finished stages are skipped, an interrupted stage resumes from its last checkpoint."""
    from ratchet.components.recipes.check_data import check_files
    from ratchet.components.recipes.recipe import inherited_sizes
    from ratchet.tasks.pipeline import Pipeline

    console, options = open_console(), {"overrides": set, "profile": profile, "limit": limit}
    pipeline = Pipeline.open(recipe, home=home, **options)
    checked = check_files(pipeline.recipe, warnings=inherited_sizes(recipe, set))
    if finished(pipeline, until):
        console.print(
            f"Nothing to do: all {len(pipeline.stages)} stages of run {pipeline.run.name} are finished."
        )
        return _print_result(console, pipeline)
    print_plan(console, pipeline)
    try:
        execute(pipeline, console, checked.warnings, until=until, if_running=if_running, **options)
    except (KeyboardInterrupt, Cancelled):  # Ctrl-C, also while servers start
        console.print("Stopped. Finished stages and checkpoints are kept; the same command resumes.")
        raise typer.Exit(130) from None
    except RatchetError:
        _print_result(console, pipeline)
        raise
    _print_result(console, pipeline)


@app.command()
def sync(home: Home = OUT) -> None:
    """Send metrics and artifacts to MLflow that were recorded while its server was unreachable."""
    from ratchet.tasks.tracking.upload import sync as upload

    for run in sorted((home / "runs").glob("*/run.json")):
        try:
            typer.echo(f"{run.parent.name}: {upload(run.parent, home)} metric values uploaded")
        except BusyError:  # such as the run itself
            typer.echo(f"{run.parent.name}: another process uploads it now")


@app.command()
def ui(home: Home = OUT) -> None:
    """Start the MLflow and Prefect web interfaces on free local ports. Ctrl-C stops both."""
    from ratchet.flows.ui import serve

    serve(home)


COMMANDS = (
    *(init, plan, runs, show, chat, certify, claims, compare, label, deploy),
    *(lineage, export, reproduce, promote, rollback, gc, doctor, join, stage),
)
"""Commands of modules of their own, in the order of the help."""
RESUME = ("run", "stage", "claims", "compare")
"""Commands that continue where they stopped, or reuse finished stages, if they are given again."""
for command in COMMANDS:
    app.command()(command)


def main() -> None:
    """Entry point. Exit codes: 0; 1 for a `RatchetError` and for an error of the environment (disk full,
    server unreachable), which are one line, and for any other exception, with its traceback; 2 for a
    `RecipeError`, an error in the file of a piece, and for wrong usage; 130 after Ctrl-C.
    """
    try:
        app()
    except RatchetError as error:
        typer.echo(f"error: {error}", err=True)
        sys.exit(2 if isinstance(error, RecipeError) else 1)
    except Exception as error:
        if (why := piece_error(error)) is not None:
            typer.echo(f"error: {why}", err=True)
            sys.exit(2)
        why = environment_error(error)
        if why is None:
            raise
        resumes = sys.argv[1:] and sys.argv[1] in RESUME
        advice = "; finished work is kept, the same command resumes" if resumes else ""
        typer.echo(f"error: {redacted(why)}{advice}", err=True)
        sys.exit(1)
    finally:
        freeze()  # skips a garbage collection of about 1 s at exit


def _print_result(console: Console, pipeline: Pipeline) -> None:
    """Print the run's outcome and the paths of its outputs."""
    from ratchet.tasks.registry.registration import checkpoints, final_stage
    from ratchet.tasks.tracking.outcome import outcome

    final = final_stage(pipeline) if checkpoints(pipeline) else None
    if (pipeline.run.path / "run.json").exists():
        print_outcome(
            console, {**outcome(pipeline.run.path), "error": None}, pipeline.profile.hardware.currency
        )
    facts = [("run", str(pipeline.run.path)), ("pages", "ratchet ui")]
    if final and (model := pipeline.run.path / "stages" / final).exists():
        facts.insert(1, ("model", str(model)))
    print_facts(console, facts)


if __name__ == "__main__":
    main()
