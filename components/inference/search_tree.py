"""Search trees of partial answers: upper confidence bounds, and values backed up from children."""

from __future__ import annotations

import hashlib
import math
import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from ratchet.components.types import Prompt, Request, Sample, Stop


@dataclass(eq=False)
class Node:
    """A partial solution. `answer`: tokens from the start of the answer; `begins`: where its last step
    begins; `value` and `visits`: V and N; `stop`: why the answer has no next step, None if it may have one.
    """

    answer: list[int]
    logprobs: list[float]
    begins: int = 0
    parent: Node | None = None
    value: float = 0.0
    visits: int = 0
    path: str = ""
    stop: Stop | None = None
    expanded: bool = False
    children: list[Node] = field(default_factory=list)

    def child(self, step: Sample, stop: Stop | None) -> tuple[Node, bool]:
        """The child that this step leads to, and whether it is new."""
        answer = [*self.answer, *step.tokens]
        for known in self.children:
            if known.answer == answer:
                return known, False
        made = Node(
            answer,
            [*self.logprobs, *step.logprobs],
            len(self.answer),
            self,
            path=f"{self.path}.{len(self.children)}",
            stop=stop,
        )
        self.children.append(made)
        return made, True

    def best(self) -> Node:
        """The child with the highest value, the first of several."""
        return max(self.children, key=lambda child: child.value)

    def line(self) -> list[Node]:
        """The nodes from the first step to this one."""
        return [*self.parent.line(), self] if self.parent else []

    def leaves(self) -> Iterator[Node]:
        """Nodes without children below this one, or itself, depth first."""
        if not self.children:
            yield self
        for child in self.children:
            yield from child.leaves()


@dataclass
class Tree:
    """The search for one answer: its root, its own random numbers, and what it has cost."""

    prompt: Prompt
    start: list[int]
    seed: int
    root: Node = field(default_factory=lambda: Node([], []))
    solution: Node | None = None
    generated: int = 0
    valued: int = 0

    def __post_init__(self) -> None:
        self.ties = random.Random(self.seed)

    def select(self, exploration: float) -> Node:
        """The leaf, or the node that was not expanded yet, that the upper confidence bounds lead to."""
        node = self.root
        while node.expanded and node.children:
            scores = [bound(child, node.visits, exploration) for child in node.children]
            highest = max(scores)
            best = [c for c, s in zip(node.children, scores, strict=True) if s == highest]
            node = best[0] if len(best) == 1 else self.ties.choice(best)
        return node

    def draw(self, node: Node, kind: str, **settings: Any) -> Request:
        """A request for next steps, whose random numbers depend on the tree and the node's path."""
        key = hashlib.sha256(f"{self.seed}/{node.path}/{kind}".encode()).digest()
        return Request([*self.start, *node.answer], seed=int.from_bytes(key[:4]) >> 1, **settings)

    def answer(self) -> Node:
        """The solution, else the leaf with the highest value, of those that ended if there are any."""
        leaves = list(self.root.leaves())
        ended = [leaf for leaf in leaves if leaf.stop == "end"] or leaves
        return self.solution or max(ended, key=lambda leaf: leaf.value)


def bound(child: Node, visits: int, exploration: float) -> float:
    """V + c sqrt(2 ln N_parent / N), and V + 1 for a child without visits.

    >>> bound(Node([], [], value=0.5, visits=2), 8, 0.7)  # 0.5 + 0.7 sqrt(ln 8)
    1.5094...
    """
    if not child.visits:
        return child.value + 1.0
    return child.value + exploration * math.sqrt(2 * math.log(max(visits, 1)) / child.visits)


def back_up(node: Node | None) -> None:
    """One visit more for the node and its ancestors. The value of each becomes the mean of its children's,
    weighted by their visits; children without visits do not count, and without any it stays.
    """
    while node is not None:
        node.visits += 1
        total = sum(child.visits for child in node.children)
        if total:
            node.value = math.fsum(child.value * child.visits for child in node.children) / total
        node = node.parent
