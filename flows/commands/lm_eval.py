"""`ratchet lm-eval`: run tasks of lm-evaluation-harness on a model."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ratchet.flows.commands.export import Model
from ratchet.flows.commands.options import OUT, Home


def lm_eval(
    model: Model,
    tasks: Annotated[str, typer.Option(help="Comma-separated task names: ifeval,gsm8k.")],
    tasks_folder: Annotated[
        Path | None, typer.Option(help="Directory of your own task files (YAML).")
    ] = None,
    limit: Annotated[
        int | None, typer.Option(min=1, help="Evaluate only the first N documents of each task.")
    ] = None,
    shots: Annotated[
        int | None, typer.Option(min=0, help="Number of few-shot examples. Default: the task's.")
    ] = None,
    chat: Annotated[bool, typer.Option(help="Apply the model's chat template.")] = True,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    home: Home = OUT,
) -> None:
    """Evaluate a model with lm-evaluation-harness (extra `lm-eval`), with 95 % intervals."""
    import json
    from dataclasses import asdict

    from ratchet.flows.display import open_console, table_of
    from ratchet.tasks.registry.harness import evaluate

    scores = evaluate(
        model,
        [task.strip() for task in tasks.split(",")],
        home=home,
        folder=tasks_folder,
        limit=limit,
        shots=shots,
        chat=chat,
    )
    if as_json:
        typer.echo(json.dumps([asdict(score) for score in scores], indent=1))
        return
    table = table_of("task", "metric", "value", "95 % interval", "documents")
    for s in scores:
        table.add_row(
            s.task,
            s.metric,
            f"{s.value:.4g}",
            "" if s.low is None or s.high is None else f"[{s.low:.4g}, {s.high:.4g}]",
            str(s.n or ""),
        )
    open_console().print(table)
