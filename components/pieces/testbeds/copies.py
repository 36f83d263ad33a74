"""Testbed `copies`: tasks of a stateful API with hidden values, for agents of several calls."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ratchet.components.errors import DataError
from ratchet.components.piece import piece
from ratchet.components.pieces.environments.key_value import KeyValue
from ratchet.components.recipes.ranges import Count, Natural, Share
from ratchet.components.types import Prompt

KEYS = (
    *("answer", "books", "cats", "coffee", "cooking", "dogs", "films", "football", "games", "hat"),
    *("love", "music", "name", "night", "problem", "rain", "sea", "sleep", "topic", "travel"),
)
"""One token each for the tiny model."""
MOST = 5000
"""Of 7,220 tasks whose first copy overwrites a value that the second needs, and 6,840 with one source."""

Copy = tuple[str, str]
"""A key to read and a key to write."""


@piece(paper="arXiv:2502.01600")
def copies(
    *,
    size: Count = 2000,
    seed: Natural = 0,
    hidden: Count = 2,
    overwriting: Share = 0.5,
    careful: Share = 0.3,
    assumed: Share = 0.3,
    strayed: Share = 0.1,
    mistyped: Share = 0.1,
) -> Iterator[dict[str, Any]]:
    """Rows {id, prompt, completion, meta}: "Copy rain to cats, dogs to hat.", where both keys get the values
    that their sources had at the beginning. `meta` is the world of the environment `key_value`: `state`, a
    hidden digit for each of twenty keys, and `wanted`. In a share `overwriting` of the rows the first copy
    changes the source of the second ("Copy rain to cats, cats to hat."), so that both must be read first.
    With `hidden=1` both copies have the same source ("Copy rain to cats, rain to hat."), which is read once.
    No two rows have equal prompts; `size` is at most 5,000 (`DataError`).

    The completion is a demonstration, with the observations of the environment: "get rain", "set cats 5",
    ..., "done". It reads both values before it writes with probability `careful`, else it makes one copy
    after the other. Independently, each value is not read but `assumed` (a random digit), one value is
    written to a key of no concern instead (`strayed`), and "get" lacks its key and is repeated after the
    error (`mistyped`), with those probabilities.

    With q = 1 - 0.9 `assumed` and s = 1 - `strayed`, demonstrations solve s q^2 of the tasks, of the
    overwriting ones s q (`careful` q + (1 - `careful`) / 10): 0.34 with the defaults; with `hidden=1` s q. A
    policy fine-tuned on them solves at most about as many. The optimum is 1, in five calls (four). A policy
    that reads nothing solves 1 % (10 %), one that writes everywhere none.

    Shows: whether a method learns from the outcome of a whole episode to read and not to assume, to read
    before it overwrites, and to leave other keys alone, on tasks it has not seen; success is exact.
    Does not show: the language, documentation and code of AppWorld, episodes of dozens of calls, exploration
    of unknown calls (each useful call is demonstrated).
    """
    if hidden > 2 or size > MOST:
        raise DataError(
            f"copies: expected one or two hidden values and a size of at most {MOST}, got {hidden} and {size}"
        )
    rng, taken = random.Random(f"copies {seed}"), set[str]()
    while len(taken) < size:
        # every row keeps its kind until a new prompt is found, so that the share is exact
        chained = (len(taken) + 1) * overwriting // 1 > len(taken) * overwriting // 1
        first, second = _task(rng, hidden, chained)
        text = f"Copy {first[0]} to {first[1]}, {second[0]} to {second[1]}."
        if text in taken:
            continue
        state = {key: str(rng.randrange(10)) for key in KEYS}
        wanted = {first[1]: state[first[0]], second[1]: state[second[0]]}
        meta = {"state": state, "wanted": wanted}
        yield {
            "id": f"copies-{seed}-{len(taken)}",
            "prompt": [{"role": "user", "content": text}],
            "completion": _demonstration(
                rng, (first, second), meta, rng.random() < careful, assumed, strayed, mistyped
            ),
            "meta": meta,
        }
        taken.add(text)


def _task(rng: random.Random, hidden: int, chained: bool) -> tuple[Copy, Copy]:
    """Two copies to different keys; `chained`: the first overwrites the source of the second."""
    a, b, c, d = rng.sample(KEYS, 4)
    if hidden == 1:
        return (a, b), (a, c)
    if chained:
        return (a, b), (b, rng.choice([key for key in KEYS if key != b]))
    return (a, b), (c, d)


def _demonstration(
    rng: random.Random,
    task: Sequence[Copy],
    meta: Mapping[str, Any],
    careful: bool,
    assumed: float,
    strayed: float,
    mistyped: float,
) -> list[dict[str, str]]:
    """Messages of an episode: calls, and what the environment answers."""
    world = KeyValue(calls=2 * len(task) + 2)
    world.begin(Prompt("", (), meta=meta))
    messages: list[dict[str, str]] = []
    used = {key for copy in task for key in copy}
    astray = rng.randrange(len(task)) if rng.random() < strayed else -1
    slip = rng.random() < mistyped
    read: dict[str, str] = {}  # by source

    def call(action: str) -> str:
        messages.append({"role": "assistant", "content": action})
        (shown,) = world.step(action).observation.messages
        messages.append({"role": shown["role"], "content": shown["content"]})
        return shown["content"]

    def get(source: str) -> None:
        nonlocal slip
        if source in read:
            return
        if rng.random() < assumed:
            read[source] = str(rng.randrange(10))
            return
        if slip:
            call("get")
            slip = False
        read[source] = call(f"get {source}")

    for source, _ in task if careful else ():
        get(source)
    for number, (source, target) in enumerate(task):
        get(source)
        if number == astray:
            target = rng.choice([key for key in KEYS if key not in used])
        call(f"set {target} {read[source]}")
    return [*messages, {"role": "assistant", "content": "done"}]
