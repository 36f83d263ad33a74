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

KEYS = "abcdefghijkl"
MOST = 1200
"""Of 1,452 tasks in which the first copy overwrites a value that the second needs."""

Copy = tuple[str, str]
"""A key to read and a key to write."""


@piece(paper="arXiv:2502.01600")
def copies(
    *,
    size: Count = 2000,
    seed: Natural = 0,
    overwriting: Share = 0.5,
    careful: Share = 0.3,
    assumed: Share = 0.3,
    strayed: Share = 0.1,
    mistyped: Share = 0.1,
) -> Iterator[dict[str, Any]]:
    """Rows {id, prompt, completion, meta}: "Copy a to c, d to b.", where both keys get the values that their
    sources had at the beginning. `meta` is the world of the environment `key_value`: `state`, a hidden digit
    for each of twelve keys, and `wanted`. In a share `overwriting` of the rows the first copy changes the
    source of the second ("Copy a to c, c to b."), so that both must be read first. No two rows have equal
    prompts; at most 1,200 rows overwrite (`DataError`).

    The completion is a demonstration, with the observations of the environment: "get a", "set c 5", ...,
    "done". It reads both values before it writes with probability `careful`, else it makes one copy after
    the other. Independently, each value is not read but `assumed` (a random digit), one value is written to a
    key of no concern instead (`strayed`), and "get" lacks its key and is repeated after the error
    (`mistyped`), with those probabilities.

    With q = 1 - 0.9 `assumed` and s = 1 - `strayed`, demonstrations solve s q^2 of the tasks, of the
    overwriting ones s q (`careful` q + (1 - `careful`) / 10): 0.34 with the defaults, and a policy fine-tuned
    on them about as many. The optimum is 1, in five calls. A policy that reads nothing solves 1 %, one that
    writes the same digit everywhere none.

    Shows: whether a method learns from the outcome of a whole episode to read before it writes, not to
    assume, and to leave other keys alone, on tasks it has not seen; success is exact. Does not show: the
    language, documentation and code of AppWorld, episodes of dozens of calls, exploration of unknown calls
    (each useful call is demonstrated).
    """
    rng, taken = random.Random(f"copies {seed}"), set[str]()
    if round(size * overwriting) > MOST:
        raise DataError(
            f"copies: at most {MOST} rows can overwrite, but size is {size} and overwriting {overwriting:g}; "
            "lower either"
        )
    while len(taken) < size:
        # every row asks for its kind until a new prompt is found, so that the share is kept
        chained = (len(taken) + 1) * overwriting // 1 > len(taken) * overwriting // 1
        first, second = _task(rng, chained)
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


def _task(rng: random.Random, chained: bool) -> tuple[Copy, Copy]:
    """Two copies to different keys; `chained`: the first overwrites the source of the second."""
    a, b, c, d = rng.sample(KEYS, 4)
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
    read: list[str] = []

    def call(action: str) -> str:
        messages.append({"role": "assistant", "content": action})
        (shown,) = world.step(action).observation.messages
        messages.append({"role": shown["role"], "content": shown["content"]})
        return shown["content"]

    def get(source: str) -> None:
        nonlocal slip
        if rng.random() < assumed:
            read.append(str(rng.randrange(10)))
            return
        if slip:
            call("get")
            slip = False
        read.append(call(f"get {source}"))

    for source, _ in task if careful else ():
        get(source)
    for number, (source, target) in enumerate(task):
        if not careful:
            get(source)
        if number == astray:
            target = rng.choice([key for key in KEYS if key not in used])
        call(f"set {target} {read[number]}")
    return [*messages, {"role": "assistant", "content": "done"}]
