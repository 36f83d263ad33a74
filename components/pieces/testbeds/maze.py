"""Testbed `maze`: past episodes that never cross a maze, for learning offline and then online."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

from ratchet.components.errors import DataError
from ratchet.components.piece import piece
from ratchet.components.pieces.environments.maze import MOVES, Cell, after, distances, name, read
from ratchet.components.recipes.ranges import Count, Natural, Share


@piece(paper="arXiv:2412.07762")
def maze(
    *,
    layout: str = "..XG./..X../.....",
    gate: str = "c3",
    held_out: str = "a2,b3,e3",
    log: Count = 30,
    moves: Count = 10,
    noise: Share = 0.3,
    seed: Natural = 0,
) -> Iterator[dict[str, Any]]:
    """Starts in the environment `maze`, with past episodes from them. Read the splits with
    `data.columns: {split: split}`.

    `train`: a row {id, prompt, meta} for every cell but the goal and those in `held_out`. The prompt is the
    cell's name, `meta["start"]` too, and `meta["log"]` has the actions of `log` past episodes from there, one
    letter an action. `test`: a row for each start in `held_out`, without a log.

    The controller of the past episodes walks to one random way-point after another, on a shortest path; a
    share `noise` of its moves is random. It never crosses the cell `gate`: an episode that starts on one side
    stays there and ends when it comes to the gate, and one from the gate goes to either side. So the log has
    the way to the gate, and the way from the gate to the goal, but no episode with both. It ends at the goal
    too, and after `moves` actions. `DataError` for cells that are no floor.

    Shows: what learning online gains over imitation of such a log, and what the offline data, a buffer filled
    by the policy before it learns, or values from offline learning are worth in it. A reward comes at the
    goal only, up to seven moves away.
    Does not show: continuous actions, networks of other kinds, noise in the environment, mazes in which
    random moves never find the goal, or states that the policy must remember: the last observation says all.
    """
    floor, goal = read(layout)
    cells = {name(cell): cell for cell in sorted(floor - {goal})}
    tests = held_out.split(",")
    if unknown := [one for one in (gate, *tests) if one not in cells]:
        raise DataError(f"maze: {unknown[0]!r} is no floor of {layout!r}; expected one of {', '.join(cells)}")
    rng = random.Random(f"maze {seed}")
    for start, cell in cells.items():
        row = {"prompt": [{"role": "user", "content": start}]}
        if start in tests:
            yield {"id": f"test-{start}", "split": "test", "meta": {"start": start}, **row}
            continue
        past = []
        for _ in range(log):
            side = rng.choice(sides(floor, cells[gate], cell))
            past.append("".join(_episode(side, cell, {goal, cells[gate]}, moves, noise, rng)))
        yield {"id": f"train-{start}", "split": "train", "meta": {"start": start, "log": past}, **row}


def sides(floor: frozenset[Cell], gate: Cell, start: Cell) -> list[frozenset[Cell]]:
    """The cells that can be reached from `start` without crossing the gate, the gate included; of the gate
    itself, one set for each way out.
    """
    starts = [start] if start != gate else sorted({after(floor, gate, move) for move in MOVES} - {gate})
    found = [frozenset(distances(floor - {gate}, one)) | {gate} for one in starts]
    return list(dict.fromkeys(found))


def _episode(
    side: frozenset[Cell], cell: Cell, ends: set[Cell], moves: int, noise: float, rng: random.Random
) -> Iterator[str]:
    """Actions until one of the cells `ends`, at most `moves`. Moves out of `side` are blocked, and not
    made.
    """
    point = cell
    for _ in range(moves):
        while point == cell:
            point = rng.choice(sorted(side))
            far = distances(side, point)
        ways = {move: there for move in MOVES if (there := after(side, cell, move)) != cell}
        best = [move for move, there in ways.items() if far[there] < far[cell]]
        move = rng.choice(sorted(ways) if rng.random() < noise else best)
        cell = ways[move]
        yield move
        if cell in ends:
            return
