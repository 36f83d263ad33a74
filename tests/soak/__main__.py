"""`make soak` (`python -m tests.soak`): fault injection into a small pipeline, with recovery compared bit for
bit.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from ratchet.flows.commands.options import OUT, Home
from tests.soak.faults import FAULTS


def soak(
    home: Home = OUT,
    recipe: Annotated[str, typer.Option(help="Recipe to run.")] = "online_dpo",
    profile: Annotated[str, typer.Option(help="Hardware profile.")] = str(
        Path(__file__).with_name("soak.yaml")
    ),
    set: Annotated[list[str], typer.Option("--set", help="Override a recipe key.")] = [],  # noqa: B006
    fault: Annotated[
        list[str], typer.Option("--fault", help=f"Only these faults: {', '.join(FAULTS)}.")
    ] = [],  # noqa: B006
    tries: Annotated[int, typer.Option(help="Trials per fault.")] = 3,
    seed: int = 0,
) -> None:
    """Strike a pipeline at random moments, resume it, compare its weights and metrics with an undisturbed
    run's. Exit code 1 unless every trial is survived. Works in HOME/soak, with an MLflow and a Prefect server
    of its own on loopback.
    """
    from rich.markup import escape

    from ratchet.components.errors import RecipeError, nearest
    from ratchet.flows.display import open_console, table_of
    from ratchet.tasks.pipeline import Pipeline
    from ratchet.tasks.process.orphans import reap_children_on_exit
    from tests.soak.servers import Servers
    from tests.soak.trials import Soak

    reap_children_on_exit()
    for name in fault:
        if name not in FAULTS:
            raise RecipeError(f"--fault: no fault named {name!r}{nearest(name, FAULTS)}")
    console, folder = open_console(), (home / "soak").resolve()
    base = folder / "base"
    overrides = [*SMALL.get(recipe, []), *set]
    pipeline = Pipeline.open(recipe, home=base, overrides=overrides, profile=profile)
    engines = pipeline.profile.engine == "vllm" and pipeline.profile.vllm.python is not None
    if not engines and any(FAULTS[name].engine for name in fault):
        raise RecipeError(
            f"--fault engine: the profile {profile} starts no vLLM; name one with `engine: vllm` and "
            "`vllm.python`"
        )
    names = fault or [name for name in FAULTS if engines or not FAULTS[name].engine]
    for name in (n for n in pipeline.stages if n.startswith("model_")):
        pipeline.make(name)
    arguments = [arg for one in overrides for arg in ("--set", one)]

    def run(at: Path) -> list[str]:
        return [
            sys.executable,
            "-m",
            "ratchet.flows.cli",
            "run",
            recipe,
            "--home",
            str(at),
            "--profile",
            profile,
            *arguments,
        ]

    def sync(at: Path) -> list[str]:
        return [sys.executable, "-m", "ratchet.flows.cli", "sync", "--home", str(at)]

    tallies = {}
    with Servers(folder / "servers") as servers:
        trials = Soak(
            folder, run, sync, base, seed, servers, {"PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
        )
        trials.undisturbed()
        console.print(f"The undisturbed run took {trials.seconds:.0f} s.")
        for name, complaints, tally in trials.trials(names, tries):
            tallies[name] = tally
            console.print(
                f"{name}: {tally.survived} of {tally.tried}"
                + "".join(f"\n  {escape(c)}" for c in complaints),
                soft_wrap=True,
            )
    table = table_of("fault", "survived", "tried", "what the run said of it")
    for name, tally in tallies.items():
        table.add_row(
            name,
            str(tally.survived),
            str(tally.tried),
            escape("\n".join(s[:160] for s in sorted(tally.sentences)[:3])),
        )
    console.print(table)
    if any(tally.complaints for tally in tallies.values()):
        raise typer.Exit(1)


SMALL = {  # a minute of work in all the stages that learn
    "online_dpo": [
        "reward.limit=64",
        "reward.limit_validation=24",
        "online.prompts_per_round=6",
        "online.fit.batch=2",
        "online.fit.save_every=1",
        "reward.fit.save_every=2",
        "evaluate.prompts=6",
        "reward.certificate.min_accuracy=null",
    ],
    "sft": ["sft.limit=96", "sft.fit.save_every=2", "evaluate.prompts=4"],
}


if __name__ == "__main__":
    from ratchet.components.errors import RatchetError

    try:
        typer.run(soak)
    except RatchetError as wrong:
        sys.exit(f"error: {wrong}")
