"""Rollout `tree_search`: Monte Carlo tree search over reasoning steps, guided by a value model."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ratchet.components.inference.search_tree import Node, Tree, back_up
from ratchet.components.piece import piece
from ratchet.components.pieces.rollouts.sample import prompt_seed
from ratchet.components.pieces.scoring.trace_value import state_values
from ratchet.components.recipes.ranges import Bool, Count, Natural, NotNegative, Share, Temperature
from ratchet.components.types import Context, Group, Prompt, Sample, Span, Stop, Trajectory

if TYPE_CHECKING:
    from ratchet.components.protocols import Engine, ModelEngine


@piece(writes=("logprobs.sampled",), models=("policy", "{value}"), paper="arXiv:2406.03816")
def tree_search(
    prompts: Sequence[Prompt],
    ctx: Context,
    *,
    value: str,
    separators: Sequence[str] = ("\n",),
    iterations: Count = 50,
    budget: Count | None = None,
    branch: Count = 3,
    roll_steps: Natural = 3,
    alpha: Share = 0.5,
    exploration: NotNegative = 0.7,
    gate: Share | None = 0.9,
    step_tokens: Count = 64,
    max_tokens: Count = 256,
    temperature: Temperature = 0.7,
    responses_per_prompt: Count = 1,
    leaves: Bool = False,
) -> list[Group]:
    """MCTS* of ReST-MCTS* (Algorithm 2). A node is the prompt with some steps; a step ends with one of the
    strings `separators`, and the last one with the end of the answer. An iteration
    1. selects from the root, by the upper confidence bound V + `exploration` sqrt(2 ln N_parent / N), a node
       that was not expanded (ties at random);
    2. samples `branch` next steps, of which equal ones are one child, and reads their values by the value
       model `value` (`objectives.step_value`);
    3. simulates from the best child: up to `roll_steps` further steps, one sample each; its V becomes
       (1 - `alpha`) V + `alpha` times the highest V met, and it is visited;
    4. backs up (`back_up`). A node whose answer has ended is visited again.

    The search of an answer stops when it selects an answer that ended with a V of at least `gate` (null:
    never), after `iterations`, or once `budget` tokens were generated (null: any number). The answer is that
    one, else the one with the highest V. No verifier is asked. With `separators: []` and `iterations: 1` it
    is best-of-`branch` by the value model.

    `responses_per_prompt` answers have a tree each. With `leaves` a group has all leaves of its trees, depth
    first, with those that have not ended (stop `length`), for training: `parent` is the earlier leaf and the
    token from which a leaf branched. Spans are steps with their V (`numbers["value"]`) and N
    (`numbers["visits"]`). Meta of a trajectory: `generated`, the tokens of the whole tree, with rejected
    branches and equal steps; `valued`, the number of values read.

    Deviations: simulated steps stay in the tree; a step is sampled once, since equal ones are no failures; an
    answer ends by itself, no model is asked whether it did; the gate applies to answers that ended. All trees
    go in lock step. Random numbers depend on seed, round, prompt id, answer and the node's path.
    """
    engine, critic = ctx.models["policy"], ctx.models[value]
    trees = [
        Tree(prompt, list(engine.encode_prompt(prompt)), (prompt_seed(ctx, prompt) + 7919 * i) & 0x7FFFFFFF)
        for prompt in prompts
        for i in range(responses_per_prompt)
    ]
    steps = Steps(engine, critic, tuple(separators), step_tokens, max_tokens, temperature)
    live = trees
    for _ in range(iterations):
        live = [tree for tree in live if budget is None or tree.generated < budget]
        picked = [(tree, tree.select(exploration)) for tree in live]
        for tree, node in picked:
            if gate is not None and node.stop == "end" and node.value >= gate:
                tree.solution = node
        picked = [(tree, node) for tree, node in picked if tree.solution is None]
        live = [tree for tree, _ in picked]
        if not live:
            break
        grown = [(tree, node) for tree, node in picked if node.stop is None]
        steps.take(grown, "expand", branch)
        for _, node in grown:
            node.expanded = True
        simulate(steps, [(tree, node.best()) for tree, node in grown], roll_steps, alpha)
        for _, node in picked:
            back_up(node)
    size = responses_per_prompt
    return [
        Group(
            prompt,
            tuple(_trajectories(trees[i * size : (i + 1) * size], engine, ctx.round, temperature, leaves)),
        )
        for i, prompt in enumerate(prompts)
    ]


def simulate(steps: Steps, starts: Sequence[tuple[Tree, Node]], most: int, alpha: float) -> None:
    """Follow one sampled step after another from each start, and mix the highest value met into its own."""
    met: list[list[float]] = [[] for _ in starts]
    ends = list(starts)
    for _ in range(most):
        going = [i for i, (_, node) in enumerate(ends) if node.stop is None]
        if not going:
            break
        for i, node in zip(going, steps.take([ends[i] for i in going], "simulate", 1), strict=True):
            ends[i] = ends[i][0], node
            met[i].append(node.value)
    for (_, node), values in zip(starts, met, strict=True):
        if values:
            node.value = (1 - alpha) * node.value + alpha * max(values)
        node.visits += 1


@dataclass(frozen=True)
class Steps:
    """Samples next steps and reads their values, for many trees at once."""

    engine: ModelEngine
    critic: ModelEngine
    separators: tuple[str, ...]
    step_tokens: int
    max_tokens: int
    temperature: float

    def take(self, places: Sequence[tuple[Tree, Node]], kind: str, count: int) -> list[Node]:
        """Add `count` sampled steps to each of these nodes. Returns the child of each one's last step."""
        requests = [
            tree.draw(
                node,
                kind,
                count=count,
                max_tokens=min(self.step_tokens, self.max_tokens - len(node.answer)),
                temperature=self.temperature,
                stop_strings=self.separators,
            )
            for tree, node in places
        ]
        new: list[tuple[Tree, Node]] = []
        last: list[Node] = []
        for (tree, node), samples in zip(places, self.engine.generate(requests), strict=True):
            for sample in samples:
                child, unseen = node.child(sample, self._stop(node, sample))
                tree.generated += len(sample.tokens)
                if unseen:
                    new.append((tree, child))
                if sample is samples[-1]:
                    last.append(child)
        values = state_values(self.critic, [[*tree.start, *node.answer] for tree, node in new])
        for (tree, node), value in zip(new, values, strict=True):
            node.value = value
            tree.valued += 1
        return last

    def _stop(self, node: Node, sample: Sample) -> Stop | None:
        if sample.tokens[-1] in self.engine.contract.eos:
            return "end"
        cut = sample.stop == "length" or len(node.answer) + len(sample.tokens) >= self.max_tokens
        return "length" if cut else None


def _trajectories(
    trees: Sequence[Tree], engine: Engine, number: int, temperature: float, leaves: bool
) -> Iterator[Trajectory]:
    """The answer of each tree, or all leaves of all of them."""
    count = 0
    for i, tree in enumerate(trees):
        before, first = len(tree.start), dict[Node, int]()
        for leaf in tree.root.leaves() if leaves else [tree.answer()]:
            line = leaf.line()
            at = next((node for node in reversed((tree.root, *line)) if node in first), None)
            parent = (first[at], before + len(at.answer)) if at else None
            for node in (tree.root, *line):
                first.setdefault(node, count)
            count += 1
            yield Trajectory(
                messages=({"role": "assistant", "content": engine.decode(leaf.answer)},),
                inputs={"tokens": [*tree.start, *leaf.answer]},
                mask=[False] * before + [True] * len(leaf.answer),
                logprobs=[0.0] * before + leaf.logprobs,
                actor="policy",
                weights=engine.weights,
                spans=tuple(_span(node, before) for node in line),
                parent=parent,
                stop=leaf.stop or "length",
                meta={
                    "round": number,
                    "seed": tree.seed,
                    "sample": i,
                    "temperature": temperature,
                    "generated": tree.generated,
                    "valued": tree.valued,
                },
            )


def _span(node: Node, before: int) -> Span:
    """A step as a span of its trajectory."""
    return Span(
        before + node.begins,
        before + len(node.answer),
        numbers={"value": node.value, "visits": float(node.visits)},
    )
