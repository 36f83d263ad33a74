"""Environment `maze`: a grid with walls, one move a turn, and a reward at the goal only."""

from __future__ import annotations

from collections.abc import Mapping

from ratchet.components.errors import DataError
from ratchet.components.piece import piece
from ratchet.components.recipes.ranges import Count
from ratchet.components.types import Observation, Prompt, Step

MOVES = {"n": (-1, 0), "e": (0, 1), "s": (1, 0), "w": (0, -1)}
"""Action -> change of row and column."""
MOST = 9
"""Largest number of rows and of columns: a cell's name is a letter and a digit."""

Cell = tuple[int, int]


@piece(paper="arXiv:2412.07762")
class Maze:
    """A grid of rows that `layout` has from the top, with "/" between them: "." is floor, "X" a wall, "G" the
    goal. By default it is two rooms, a corridor below both, and the goal in the second room, beside the wall.
    A cell is called by its column, a letter from "a", and its row, a digit from 1. Episodes start in the cell
    `meta["start"]` of the prompt, else in `start`; it should be the prompt's text too. The observation after
    a move is the name of the cell that one is in now.

    The actions are "n", "e", "s" and "w". A move into a wall or out of the grid, and an action that is none
    of the four, leave one where one is. Entering the goal has the reward 1 and ends the episode; without that
    it is truncated after `moves` actions. All other rewards are 0.

    Measures: `solved` (1 if the goal was reached), `moves` (actions taken), `blocked` (moves that led
    nowhere) and `errors` (invalid actions). `DataError` for a layout of rows of different lengths, of more
    than 9 rows or columns, with other characters or not exactly one goal, and for a start that is no floor.
    """

    def __init__(self, *, layout: str = "..XG./..X../.....", moves: Count = 10, start: str = "a1") -> None:
        self.floor, self.goal = read(layout)
        self.moves, self.start, self.cell = moves, start, self.goal
        self.made, self.blocked, self.errors = 0, 0, 0

    def begin(self, prompt: Prompt) -> Observation:
        start = str(prompt.meta.get("start", self.start))
        named = {name(cell): cell for cell in self.floor - {self.goal}}
        if start not in named:
            raise DataError(f"maze: expected a start out of {', '.join(sorted(named))}, got {start!r}")
        self.cell = named[start]
        return Observation()

    def step(self, action: str) -> Step:
        move = action.strip()
        valid, there = move in MOVES, after(self.floor, self.cell, move)
        self.made += 1
        self.errors += not valid
        self.blocked += valid and there == self.cell
        self.cell = there
        done = there == self.goal
        shown = {"role": "user", "content": name(there)}
        return Step(
            Observation(() if done else (shown,), valid),  # pyright: ignore[reportArgumentType]
            float(done),
            done,
            truncated=not done and self.made == self.moves,
        )

    def score(self) -> Mapping[str, float]:
        return {
            "solved": float(self.cell == self.goal and self.made > 0),
            "moves": float(self.made),
            "blocked": float(self.blocked),
            "errors": float(self.errors),
        }


def read(layout: str) -> tuple[frozenset[Cell], Cell]:
    """The cells (row, column), from 0, that are no walls, and the goal. `DataError` as in `Maze`."""
    rows = layout.split("/")
    cells = {(r, c): mark for r, row in enumerate(rows) for c, mark in enumerate(row)}
    goals = [cell for cell, mark in cells.items() if mark == "G"]
    sizes = {len(row) for row in rows}
    if len(goals) != 1 or set(cells.values()) - set(".XG") or len(sizes) > 1 or max(len(rows), *sizes) > MOST:
        raise DataError(
            f"maze: expected a layout of equally long rows of '.', 'X' and one 'G', with at most {MOST} rows "
            f"and columns and '/' between the rows, got {layout!r}"
        )
    return frozenset(cell for cell, mark in cells.items() if mark != "X"), goals[0]


def name(cell: Cell) -> str:
    """
    >>> name((0, 4))
    'e1'
    """
    return f"{'abcdefghi'[cell[1]]}{cell[0] + 1}"


def after(floor: frozenset[Cell], cell: Cell, move: str) -> Cell:
    """The cell after an action: the same one if the move is blocked or unknown."""
    down, right = MOVES.get(move, (0, 0))
    there = (cell[0] + down, cell[1] + right)
    return there if there in floor else cell


def distances(floor: frozenset[Cell], goal: Cell) -> dict[Cell, int]:
    """Smallest number of moves to `goal` from each cell that can reach it."""
    found, edge = {goal: 0}, [goal]
    for cell in edge:
        for move in MOVES:
            if (there := after(floor, cell, move)) not in found:
                found[there] = found[cell] + 1
                edge.append(there)
    return found
