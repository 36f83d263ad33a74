"""Simulated annotators who answer a labelling queue over the HTTP interface of its page."""

from __future__ import annotations

import contextlib
import importlib
import logging
import random
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import httpx

from ratchet.components.errors import DataError
from ratchet.components.labels.labels import Item
from ratchet.components.labels.queue import Queue
from ratchet.components.labels.queue_files import close_queue
from ratchet.components.labels.simulate import Annotator
from ratchet.components.piece import build
from ratchet.components.types import Context, Group

log = logging.getLogger("ratchet.labels")
SERVER = ".".join(("ratchet", "tasks", "labels", "server"))
"""Module of the page's server. Store keys depend on every module whose name is a string in the source; this
one is put together, since an edit of the page must not ask people again.
"""
LOOK = 0.2
"""Seconds between two looks of annotators who have nothing to judge."""


@contextlib.contextmanager
def answering(
    folder: Path, groups: Sequence[Group], options: Mapping[str, Any], seed: int = 0
) -> Iterator[None]:
    """Serve the queue in `folder` on loopback, and let annotators with the error rates `options["simulated"]`
    answer it, by the reward piece `options["verifier"]`. If they fail, the queue is closed, so that the stage
    does not wait for them.
    """
    over = threading.Event()
    annotators = [Annotator(f"simulated-{i}", error) for i, error in enumerate(options["simulated"], start=1)]

    def work() -> None:
        try:
            rewards = truth(groups, options["verifier"])
            server = importlib.import_module(SERVER)
            with Queue(folder) as queue, server.serving(server.make_app(queue)) as base:
                answer(base, annotators, rewards, over, seed)
        except Exception as error:
            log.error("simulated annotators failed: %s: %s", type(error).__name__, error)
            close_queue(folder)

    thread = threading.Thread(target=work, name="annotators", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def truth(groups: Sequence[Group], verifier: str) -> dict[tuple[str, str], float]:
    """Reward of every answer by a reward piece, by the last message of its prompt and its text. `DataError`
    if the piece has none for an answer.
    """
    columns = build("annotate", {"name": verifier})(groups, Context())
    name = next(one for one in columns if one.startswith("reward.") and not one.endswith(".status"))
    for group, values in zip(groups, columns[name], strict=True):
        if None in values:
            raise DataError(f"{verifier} has no reward for an answer to prompt {group.prompt.id!r}")
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
    sees what the page shows; a choice depends on the seed, the annotator's name and the comparison only.
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
