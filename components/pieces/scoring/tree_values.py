"""Value targets of reasoning steps, from the leaves of a search tree."""

from __future__ import annotations

from collections.abc import Sequence

from ratchet.components.errors import ContractError
from ratchet.components.piece import piece
from ratchet.components.pieces.advantages.read import rewards_of
from ratchet.components.recipes.ranges import Finite
from ratchet.components.types import Columns, Context, Group, Trajectory

Node = tuple[int, ...]
"""A state of the tree: the tokens of prompt and answer up to the end of a step."""


def states_of(trajectory: Trajectory) -> list[Node]:
    """The states after each step (span) of an answer, in order."""
    tokens = tuple(trajectory.inputs["tokens"])
    return [tokens[: span.stop] for span in trajectory.spans]


def next_value(before: float, needed: int, *, right: bool) -> float:
    """Value after a step, from the value before it and the number `needed` of further steps to a right end
    (Zhang et al., equations 1 and 2): before + w, at least 0, with w = (1 - before) / (needed + 1), negative
    for a wrong step.

    >>> next_value(0.0, 3, right=True), next_value(0.25, 3, right=False)
    (0.25, 0.0625)
    """
    change = (1 - before) / (needed + 1)
    return max(0.0, before + change if right else before - change)


@piece(reads=("{reward}",), writes=("target.value", "target.known"), paper="arXiv:2406.03816", by_group=True)
def tree_values(
    groups: Sequence[Group], ctx: Context, *, reward: str = "reward.exact_answer", at_least: Finite = 1.0
) -> Columns:
    """`target.value` and `target.known`, lists (T), of groups whose trajectories are the leaves of a search
    tree with a span for each step. States with equal tokens are one node. A leaf is right if its answer ended
    and has a reward of at least `at_least`; a step is right if a right leaf is in its subtree. `needed` of a
    right step is the distance to the nearest right leaf below it; a wrong step has that of its last right
    ancestor. Starting at 0, each step changes the value by `next_value`: the K steps of a right chain get
    1/K, 2/K, ... 1.

    The target is at the last token of a step, where `target.known` is 1, once for each node: in the first
    trajectory that has it. Without a target are the nodes of a tree without a right leaf, and wrong steps in
    whose subtree no answer has ended, which no answer has shown to be wrong; the paper's code gives these
    the target of a wrong step. `ContractError` for trajectories without spans.
    """
    targets, known = [], []
    for group in groups:
        for trajectory in group.trajectories:
            if not trajectory.spans:
                raise ContractError(
                    f"tree_values: prompt {group.prompt.id!r} has an answer without spans, so its steps are "
                    "not known; use the rollout `tree_search`"
                )
        found, seen = _values(group, rewards_of(group, reward), at_least), set[Node]()
        rows = [[[0.0] * len(t.mask) for t in group.trajectories] for _ in range(2)]
        for number, trajectory in enumerate(group.trajectories):
            for span, node in zip(trajectory.spans, states_of(trajectory), strict=True):
                if node in found and node not in seen:
                    rows[0][number][span.stop - 1], rows[1][number][span.stop - 1] = found[node], 1.0
                seen.add(node)
        targets.append(rows[0])
        known.append(rows[1])
    return {"target.value": targets, "target.known": known}


def _values(group: Group, rewards: Sequence[float], at_least: float) -> dict[Node, float]:
    """The target of each node that has one."""
    needed: dict[Node, int] = {}
    ended = set[Node]()
    whole: int | None = None  # steps that the root needs
    for trajectory, value in zip(group.trajectories, rewards, strict=True):
        path = states_of(trajectory)
        if trajectory.stop != "end":
            continue
        ended |= set(path)
        if value >= at_least:
            whole = min(whole or len(path), len(path))
            for done, node in enumerate(path, 1):
                needed[node] = min(needed.get(node, len(path)), len(path) - done)
    found: dict[Node, float] = {}
    if whole is None:
        return found
    for trajectory in group.trajectories:
        value, ahead = 0.0, whole
        for node in states_of(trajectory):
            right = node in needed
            ahead = needed.get(node, ahead)
            value = next_value(value, ahead, right=right)
            if right or node in ended:
                found[node] = value
    return found
