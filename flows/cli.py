"""The `ratchet` command. Nothing heavy is imported before a command needs it."""

from __future__ import annotations

import errno
import json
import os
import sys
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from components.errors import RatchetError, RecipeError, redacted
from flows.commands.compare_runs import compare_runs
from flows.commands.deploy import deploy
from flows.commands.doctor import doctor
from flows.commands.estimate import check_fits, print_estimate
from flows.commands.gc import gc
from flows.commands.lineage import lineage
from flows.commands.options import OUT, Home
from flows.commands.promote import promote, rollback
from flows.commands.reproduce import reproduce
from flows.commands.show import show
from flows.commands.soak import soak

STARTUP = "PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS"

app = typer.Typer(help="Post-training pipelines: data → SFT → reward model → online RLHF → evaluation → registry.",
                  no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)
recipes_app = typer.Typer(help="List, explain and check recipes.", no_args_is_help=True)
app.add_typer(recipes_app, name="recipes")

Set = Annotated[list[str], typer.Option("--set", help="Override a recipe key: --set online.rounds=2")]
ProfileOption = Annotated[str | None, typer.Option("--profile", help="Hardware and sizes: cpu, gpu, ...")]


@app.command()
def run(recipe: str, home: Home = OUT, set: Set = [], profile: ProfileOption = None,  # noqa: B006
        until: Annotated[str, typer.Option(help="Stop after: curate, train, evaluate, register.")] = "register",
        if_running: Annotated[Literal["wait", "refuse"], typer.Option(help="What to do while another process makes this run.")] = "wait") -> None:
    """Run a recipe (a name or a file). What is finished is kept, what was interrupted continues."""
    from rich.console import Console

    from tasks.pipeline import Pipeline

    console = Console()
    pipeline = Pipeline.open(recipe, home=home, overrides=set, profile=profile)
    finished = _finished(pipeline, until)
    if finished:
        console.print(f"Nothing to do: all {len(pipeline.stages)} stages of run {pipeline.run.name} are made.")
        _where(console, pipeline)
        return
    _print_plan(console, pipeline)
    _quiet_platforms(home)
    from flows.display import Display
    from flows.post_training import post_training

    with Display(console) as display:
        try:
            done = post_training(recipe, home=str(home), overrides=list(set), profile=profile, until=until,
                                 if_running=if_running, display=display)
        except KeyboardInterrupt:
            console.print("Stopped. Everything finished is kept; the same command continues from here.")
            raise typer.Exit(130) from None
    console.print(display.table())
    if postponed := done.get("registered", {}).get("postponed"):
        console.print(f"Nothing is registered yet, the same command does it later: {postponed}", highlight=False)
    _where(console, pipeline)


@app.command("plan")
def show_plan(recipe: str, home: Home = OUT, set: Set = [], profile: ProfileOption = None,  # noqa: B006
              estimate: Annotated[bool, typer.Option("--estimate", help="Memory, disk, tokens, time and cost too.")] = False) -> None:
    """Say what `run` would do, stage by stage, without doing it. A profile that cannot fit is refused."""
    from rich.console import Console

    from tasks.pipeline import Pipeline

    console, pipeline = Console(), Pipeline.open(recipe, home=home, overrides=set, profile=profile)
    _print_plan(console, pipeline, full=not estimate)
    (print_estimate(console, pipeline) if estimate else check_fits(pipeline))


@app.command()
def sync(home: Home = OUT) -> None:
    """Send to MLflow what could not be sent while its server was away."""
    from tasks.tracking import sync as ship

    for run in sorted((home / "runs").glob("*/tracking/journal.jsonl")):
        counts = ship(run.parent.parent, home)
        typer.echo(f"{run.parent.parent.name}: {counts['points']} points sent")


@app.command()
def compare(recipes: list[str], seeds: Annotated[int, typer.Option(help="How many seeds, from 0.")] = 3, home: Home = OUT,
            set: Set = [], profile: ProfileOption = None,  # noqa: B006
            metric: Annotated[str, typer.Option(help="A per-prompt list of the evaluation's results.")] = "win_rate") -> None:
    """Run recipes with several seeds and compare a metric, with intervals over seeds and prompts."""
    from rich.console import Console
    from rich.table import Table

    _quiet_platforms(home)
    from flows.compare import compare as run_all
    from flows.display import Display

    console = Console()
    with Display(console) as display:
        found = run_all(recipes, seeds=range(seeds), home=home, overrides=set, profile=profile, metric=metric, display=display)
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in (metric, "mean", "95 % interval", "by seed"):
        table.add_column(column)
    for name, row in {**found["arms"], **found["differences"]}.items():
        table.add_row(name, f"{row['mean']:.3f}", f"[{row['low']:.3f}, {row['high']:.3f}]".replace("[", "\\["),
                      " ".join(f"{v:.3f}" for v in row.get("by_seed", [])))
    console.print(table)


@app.command()
def ui(home: Home = OUT) -> None:
    """Start the MLflow and Prefect pages on free ports of this machine and print their addresses. Ctrl-C ends both."""
    from flows.ui import serve

    serve(home)


@app.command()
def stage(part: Annotated[str, typer.Argument(help="fetch, curate, train or evaluate: the stages of dvc.yaml.")],
          recipe: str, home: Home = OUT, set: Set = [], profile: ProfileOption = None) -> None:  # noqa: B006
    """Run one part of a recipe and lay its data out for DVC. `dvc repro` calls this."""
    from flows.parts import run_part

    _quiet_platforms(home)
    run_part(part, recipe, home=home, overrides=set, profile=profile)


@recipes_app.command("list")
def list_recipes() -> None:
    """Every recipe that ships, with what it is about."""
    from rich.console import Console
    from rich.table import Table

    from components.recipe import load, names

    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("recipe", "paper", "about"):
        table.add_column(column)
    for name in names():
        loaded, _ = load(name)
        table.add_row(name, loaded.paper, loaded.about)
    Console().print(table)


@recipes_app.command()
def explain(recipe: str, profile: ProfileOption = None) -> None:
    """The resolved recipe, every default written out, and its derived sizes."""
    from rich.console import Console

    from components.recipe import dump, load

    loaded, chosen = load(recipe, profile=profile)
    console = Console(highlight=False)
    console.print(dump(loaded, chosen))
    console.print(_sizes(loaded))


@recipes_app.command("check")
def check_recipes(recipe: Annotated[str | None, typer.Argument(help="A name or file; all that ship when left out.")] = None) -> None:
    """Check a recipe: keys, pieces, options and the flow of columns."""
    from components.recipe import load, names

    for name in [recipe] if recipe else names():
        load(name)
        typer.echo(f"{name}: ok")


for command in (show, deploy, lineage, reproduce, promote, rollback, gc, doctor, compare_runs, soak):
    app.command()(command)


def main() -> None:
    """Entry point: one clear sentence and a non-zero exit for every error of ours."""
    try:
        app()
    except RatchetError as error:
        typer.echo(f"error: {error}", err=True)
        sys.exit(2 if isinstance(error, RecipeError) else 1)
    except Exception as error:
        why = _outside(error)
        if why is None:
            raise
        typer.echo(f"error: {redacted(why)}; what is finished is kept, the same command continues", err=True)
        sys.exit(1)


OUTSIDE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EACCES, errno.EIO, errno.EMFILE,
           errno.ECONNREFUSED, errno.ECONNRESET, errno.ETIMEDOUT)


def _outside(error: BaseException | None) -> str | None:
    """The cause of an error that is nobody's mistake here, in a sentence: the Prefect server went away, the disk is full."""
    while error is not None:
        text = f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"
        if "ephemeral Prefect" in text:
            return (f"Prefect's own server did not start within {os.environ[STARTUP]} s: the machine is too busy; raise {STARTUP}, or start "
                    "`prefect server start` and set PREFECT_API_URL")
        if type(error).__module__.split(".")[0] in ("httpx", "httpcore") or "Failed to reach API" in text:
            return f"the Prefect server at {os.environ.get('PREFECT_API_URL', 'an address of this machine')} cannot be reached ({text})"
        if isinstance(error, OSError) and error.errno in OUTSIDE:
            return f"{error.strerror}{f': {error.filename}' if error.filename else ''}"
        error = error.__cause__ or error.__context__
    return None


def _finished(pipeline: Any, until: str) -> bool:
    """Whether there is nothing left to do: all stages made and, where the recipe asks for it, their weights registered."""
    file = pipeline.run.path / "run.json"
    if not file.exists() or any(s.state != "done" for s in pipeline.status()):
        return False
    state = json.loads(file.read_text())
    return until != "register" or (state.get("state") == "finished" and ("versions" in state or pipeline.recipe.register is None))


def _print_plan(console: Any, pipeline: Any, *, full: bool = False) -> None:
    from rich.table import Table

    console.print(_sizes(pipeline.recipe))
    statuses = pipeline.status()
    done = sum(s.state == "done" for s in statuses)
    if full:
        table = Table(box=None, pad_edge=False, header_style="bold")
        for column in ("stage", "would", "key", "from"):
            table.add_column(column)
        for s in statuses:
            table.add_row(s.stage.name, {"done": "keep", "resume": "continue", "run": "make"}[s.state], s.stage.key[:12],
                          ", ".join(dict.fromkeys(s.stage.inputs.values())))
        console.print(table)
    console.print(f"Run {pipeline.run.name}: {done} of {len(statuses)} stages are made already, {len(statuses) - done} to do.")


def _sizes(recipe: Any) -> Any:
    """Every quantity by its unit, derived from the recipe."""
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold", title=None)
    table.add_column("quantity")
    table.add_column("value", justify="right")

    def row(name: str, value: Any) -> None:
        if value is not None:
            table.add_row(name, str(value))

    if recipe.sft:
        row("SFT conversations a step", recipe.sft.fit.batch)
        row("SFT conversations at most", recipe.sft.limit)
        row("SFT epochs", recipe.sft.fit.epochs)
    if recipe.reward:
        row("reward models", recipe.reward.members)
        row("preference pairs a step", recipe.reward.fit.batch)
        row("preference pairs at most", recipe.reward.limit)
    if recipe.online:
        online = recipe.online
        count = online.rollout.get("responses_per_prompt")
        row("rounds", online.rounds)
        row("prompts a round", online.prompts_per_round)
        row("responses a prompt", count)
        if count:
            row("responses a round", online.prompts_per_round * count)
        row("tokens a response at most", online.rollout.get("max_tokens"))
        row("units a step", online.fit.batch)
        row("epochs a round", online.fit.epochs)
    if recipe.evaluate:
        row("held-out prompts", recipe.evaluate.prompts)
        row("responses a held-out prompt", recipe.evaluate.responses_per_prompt)
    return table


def _where(console: Any, pipeline: Any) -> None:
    path = pipeline.run.path
    report = path / "stages" / "evaluate" / "report.html"
    final = next((s for s in reversed(pipeline.stages.values()) if s.kind == "weights" and s.name not in ("gold",)), None)
    console.print(f"run        {path}", highlight=False, soft_wrap=True)
    if final:
        console.print(f"model      {path / 'stages' / final.name}", highlight=False, soft_wrap=True)
    if report.exists():
        console.print(f"report     {report}", highlight=False, soft_wrap=True)
    console.print("pages      ratchet ui", highlight=False)


def _quiet_platforms(home: Path) -> None:
    """Settings the platforms only read from the environment, before they are imported. A user's own are respected."""
    defaults = {
        "PREFECT_LOGGING_LEVEL": "CRITICAL",
        "PREFECT_SERVER_LOGGING_LEVEL": "CRITICAL",
        "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
        STARTUP: "300",
        "DO_NOT_TRACK": "1",
        "MLFLOW_DISABLE_TELEMETRY": "true",
        "GX_ANALYTICS_ENABLED": "false",
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "TOKENIZERS_PARALLELISM": "false",
    }
    from tasks.orphans import leave_nothing_behind

    if "PREFECT_API_URL" not in os.environ:
        folder = (home / "prefect").resolve()
        folder.mkdir(parents=True, exist_ok=True)
        defaults["PREFECT_HOME"] = str(folder)
        leave_nothing_behind()  # Prefect will start a server of its own
    for name, value in defaults.items():
        os.environ.setdefault(name, value)


if __name__ == "__main__":
    main()
