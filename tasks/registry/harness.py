"""Benchmarks with lm-evaluation-harness (`lm_eval`, the extra `lm-eval`) on a model of a run, the registry or
a directory.
"""

from __future__ import annotations

import importlib.util
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ratchet.components.errors import RatchetError, RecipeError
from ratchet.tasks.registry.exporting import locate
from ratchet.tasks.registry.registry_sources import bring


@dataclass(frozen=True)
class Score:
    """A metric of a task with its 95 % interval (value ± 1.96 standard errors over documents; None if the
    harness reports none).
    """

    task: str
    metric: str
    value: float
    low: float | None
    high: float | None
    n: int


def evaluate(
    model: str,
    tasks: Sequence[str],
    *,
    home: Path,
    folder: Path | None = None,
    limit: int | None = None,
    shots: int | None = None,
    chat: bool = True,
    batch: int = 8,
) -> list[Score]:
    """Run the harness; one entry per metric. `folder`: your own tasks (YAML); `limit`: first documents only;
    `chat`: apply the chat template. `RecipeError` for an unknown task or without lm_eval.
    """
    if importlib.util.find_spec("lm_eval") is None:
        raise RecipeError("lm_eval is not installed; run `pip install -e '.[lm-eval]'` in the checkout")
    import torch
    from lm_eval import simple_evaluate
    from lm_eval.tasks import TaskManager

    manager = TaskManager(include_path=str(folder) if folder else None)
    if unknown := [task for task in tasks if not manager.match_tasks([task])]:
        raise RecipeError(
            f"lm_eval has no task {', '.join(unknown)}; `lm_eval ls tasks` lists them, and --tasks-folder "
            "adds your own"
        )
    place, _, version, title = locate(model, home)
    with tempfile.TemporaryDirectory(prefix="ratchet-lm-eval-") as links:
        if place is None:
            assert version is not None
            place = Path(links) / "model"
            bring(f"registry:{version.name}/{version.version}", version.tags.get("weights"), place, home)
        try:
            found: Any = simple_evaluate(
                model="hf",
                model_args={"pretrained": str(place)},
                tasks=list(tasks),
                num_fewshot=shots,
                limit=limit,
                batch_size=batch,
                device="cuda" if torch.cuda.is_available() else "cpu",
                apply_chat_template=chat,
                task_manager=manager,
                log_samples=False,
                bootstrap_iters=1000,
            )
        except Exception as error:  # tasks use many libraries, with various exceptions
            raise RatchetError(
                f"lm_eval on {title}: {type(error).__name__}: {' '.join(str(error).split())[:400]}"
            ) from error
    assert found is not None, "None is returned on ranks other than 0 only"
    scores = []
    for task, numbers in found["results"].items():
        n = int(found.get("n-samples", {}).get(task, {}).get("effective", 0))
        for key, value in numbers.items():
            metric, _, which = key.partition(",")
            if which and not metric.endswith("_stderr") and isinstance(value, int | float):
                error = numbers.get(f"{metric}_stderr,{which}")
                wide = 1.96 * error if isinstance(error, int | float) else None
                scores.append(
                    Score(
                        task,
                        metric if which == "none" else f"{metric} ({which})",
                        float(value),
                        None if wide is None else value - wide,
                        None if wide is None else value + wide,
                        n,
                    )
                )
    return scores
