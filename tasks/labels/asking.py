"""A run that waits for people: alert, page of the run, and simulated annotators."""

from __future__ import annotations

import logging
import random
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import httpx

from ratchet.components.data.groups import read_groups
from ratchet.components.labels.labels import Item
from ratchet.components.labels.queue import Queue, close_queue
from ratchet.components.labels.simulate import Annotator
from ratchet.components.piece import build
from ratchet.components.recipes.plan import Stage
from ratchet.components.stages.ask import QUEUE
from ratchet.components.types import Artifact, Context, Group
from ratchet.tasks.pipeline import Pipeline
from ratchet.tasks.tracking.alerts import LABELS, emit_alert
from ratchet.tasks.tracking.prefect_page import unless_away

log = logging.getLogger("ratchet.labels")
LOOK = 0.2
"""Seconds between two looks of simulated annotators."""


def queue_of(home: Path, stage: str, key: str) -> Path:
    """Folder of the queue of a stage `ask` while it waits."""
    return home / "store" / ".work" / f"{stage}-{key[:16]}" / "progress" / QUEUE


class Asking:
    """Watcher of a run (`ratchet.tasks.pipeline.Watcher`): when it begins to wait for labels, it alerts and
    writes to the run's page how to give them, or starts the simulated annotators.
    """

    def __init__(self, pipeline: Pipeline) -> None:
        self.pipeline = pipeline
        self.over, self.away_until = threading.Event(), 0.0
        self.thread: threading.Thread | None = None

    def started(self, stage: Stage, metrics: Path) -> None:
        if stage.does != "ask":
            return
        options, run = stage.options["people"], self.pipeline.run
        folder = queue_of(self.pipeline.store.home, stage.name, stage.key)
        if options["simulated"]:
            self.over = threading.Event()
            self.thread = threading.Thread(target=self._simulate, args=(stage, folder), daemon=True)
            self.thread.start()
            return
        command = f"ratchet label {run.path}"
        text = f"{run.name}: {stage.title}: waits for {options['labels']} labels; `{command}` serves the page"
        log.warning("%s", text)
        emit_alert(LABELS, run.name, text, {"stage": stage.name, "labels": options["labels"]})
        self._page(text)

    def progressed(self, stage: Stage, line: Mapping[str, Any]) -> None:
        pass

    def finished(self, stage: Stage, artifact: Artifact, *, reused: bool, seconds: float) -> None:
        self._stop()

    def failed(self, stage: Stage, error: BaseException) -> None:
        self._stop()

    def _stop(self) -> None:
        self.over.set()
        if self.thread is not None:
            self.thread.join(30)
            self.thread = None

    @unless_away
    def _page(self, text: str) -> None:
        from prefect.artifacts import create_markdown_artifact

        create_markdown_artifact(markdown=text, key="labels", description="People are asked for labels.")

    def _simulate(self, stage: Stage, folder: Path) -> None:
        """Serve the page, and let simulated annotators answer over HTTP until the stage has ended."""
        from ratchet.tasks.labels.server import make_app, serving

        options = stage.options["people"]
        errors = enumerate(options["simulated"], start=1)
        annotators = [Annotator(f"simulated-{i}", error) for i, error in errors]
        answers = self.pipeline.artifact(stage.inputs["groups"]).path / "groups.parquet"
        while not (folder / "items.jsonl").exists():
            if self.over.wait(LOOK):
                return
        try:
            rewards = truth(read_groups(answers), options["verifier"])
            with Queue(folder) as queue, serving(make_app(queue)) as base:
                answer(base, annotators, rewards, self.over, stage.options["seed"])
        except Exception as error:  # the stage must not wait for labels that nobody gives
            if not self.over.is_set():
                log.error("simulated annotators failed: %s: %s", type(error).__name__, error)
                close_queue(folder)


def truth(groups: Sequence[Group], verifier: str) -> dict[tuple[str, str], float]:
    """Reward of every answer by a reward piece, by the last message of its prompt and its text."""
    columns = build("annotate", {"name": verifier})(groups, Context())
    name = next(one for one in columns if one.startswith("reward.") and not one.endswith(".status"))
    return {
        (group.prompt.messages[-1]["content"], one.text): value
        for group, values in zip(groups, columns[name], strict=True)
        for one, value in zip(group.trajectories, values, strict=True)
    }


def answer(
    base: str,
    annotators: Sequence[Annotator],
    rewards: Mapping[tuple[str, str], float],
    over: threading.Event,
    seed: int = 0,
) -> int:
    """Let annotators answer the page at `base` in turn until `over`; returns their number of labels. Each
    sees what the page shows; his choice depends on the seed, his name and the comparison only.
    """
    given = 0
    with httpx.Client(base_url=base, timeout=30) as client:
        while not over.is_set():
            idle = True
            for one in annotators:
                headers = {"X-Annotator": one.name}
                view = client.get("/api/next", headers=headers).raise_for_status().json()["item"]
                if view is None:
                    continue
                values = [rewards[view["messages"][-1]["content"], text] for text in view["answers"]]
                better = None if len(set(values)) == 1 else values.index(max(values))
                rng = random.Random(f"{seed}/{one.name}/{view['id']}")
                shown = Item(view["id"], view["messages"], view["answers"])
                label = one.label(shown, better, range(len(values)), rng)
                body = {"item": view["id"], "verdict": label.verdict, "position": label.choice,
                        "seconds": label.seconds}  # fmt: skip
                reply = client.post("/api/labels", json=body, headers=headers)
                if reply.status_code != 409:  # closed, or gone to another
                    reply.raise_for_status()
                    given, idle = given + 1, False
            if idle:
                over.wait(LOOK)
    return given
