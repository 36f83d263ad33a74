"""Further models that an online phase trains beside the policy, such as a critic, and models that follow
another one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, final

from ratchet.components.inference.torch import tensors_digest
from ratchet.components.models.layers import untie
from ratchet.components.piece import build
from ratchet.components.protocols import Memory
from ratchet.components.training.loop import Named, pieces, prepare_groups, stateful_pieces
from ratchet.components.training.objectives import memories, parts
from ratchet.components.training.rounds import Pieces, prepare, select, update
from ratchet.components.types import Context, Group

if TYPE_CHECKING:
    from ratchet.components.protocols import Learner, ModelEngine
    from ratchet.components.text.tokenizer import Tokenizer


@final
class Follower:
    """A model that follows another one by a reference update, such as an exponential moving average: the
    reference of a phase, or the target network of a role.

    Its output layer is not tied to the embeddings, so that it can follow a model whose layer is not, such as
    one under the adapter `steer`.
    """

    def __init__(self, engine: ModelEngine, follow: Callable[..., Mapping[str, Any]]) -> None:
        self.engine, self._follow = engine, follow
        untie(engine.model)

    def follow(self, leader: ModelEngine) -> None:
        """One update towards the weights of the engine `leader`."""
        self.restore(self._follow(self.engine.model.state_dict(), leader.model.state_dict()))

    def state(self) -> dict[str, Any]:
        """The weights, as CPU copies."""
        return {
            name: weight.detach().to("cpu", copy=True)
            for name, weight in self.engine.model.state_dict().items()
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        self.engine.model.load_state_dict(state)
        self.engine.weights = tensors_digest(self.engine.model)  # pyright: ignore[reportAttributeAccessIssue]


@final
class Role:
    """A model in training: `learner` with its `engine`, which shows the learner's weights after `refresh`,
    the objectives of the section `options`, its own choice of the scored groups, the columns computed before
    each of its updates (`fresh`), and its `target`, which follows after each.
    """

    def __init__(
        self,
        name: str,
        options: Mapping[str, Any],
        learner: Learner,
        engine: ModelEngine,
        refresh: Callable[[], None],
        target_engine: ModelEngine | None = None,
    ) -> None:
        self.name, self.options, self.learner = name, options, learner
        self.engine, self.refresh, self.steps = engine, refresh, 0
        self.objectives = {name: parts(options["fit"]["updates"][name])}
        self.built = Pieces(options)
        self.fresh: list[Named] = pieces("annotate", options["fresh"])
        self.target = (
            Follower(target_engine, build("reference", options["target"]))  # pyright: ignore[reportArgumentType]
            if options["target"] is not None
            else None
        )

    @property
    def models(self) -> dict[str, Any]:
        """The engines that pieces see: the role's, and `<role>_target`."""
        return {self.name: self.engine} | ({f"{self.name}_target": self.target.engine} if self.target else {})

    @property
    def memories(self) -> dict[str, Memory]:
        """Everything with a state besides the learner, by its name in checkpoints."""
        own: dict[str, Memory] = {f"{self.name}.{key}": value for key, value in self.built.memories.items()}
        own |= {f"{self.name}.{key}": v for key, v in stateful_pieces(fresh=self.fresh).items()}
        return own | {name: memory for name, memory in self.learned.items() if name != self.name}

    @property
    def learned(self) -> dict[str, Memory]:
        """Everything that its updates change, by name: the learner, its target, schedules."""
        target = {f"{self.name}.target": self.target} if self.target else {}
        return {self.name: self.learner, **target, **memories(self.objectives)}

    def learn(
        self, groups: Sequence[Group], ctx: Context, *, tokenizer: Tokenizer, tokens: int
    ) -> dict[str, float]:
        """Update the role on its choice of the scored groups of a round, if it has started. Returns metrics.
        Collective.
        """
        if ctx.round < self.options["start"]:
            return {}
        chosen, counts = select(groups, self.built, ctx, tokenizer)
        chosen = prepare(chosen, self.built, ctx)
        line, steps = update(
            {self.name: self.learner},
            self.objectives,
            chosen,
            self.options["fit"],
            tokens=tokens,
            seed=ctx.seed + ctx.round,
            at=ctx.round - self.options["start"],
            before=(lambda some: prepare_groups(some, self.fresh, ctx)) if self.fresh else None,
            after=self._followed if self.fresh or self.target else None,
        )
        self.steps += steps
        if steps:
            self.refresh()
        return {**line, **{f"{self.name}/select/{k}": float(v) for k, v in counts.items()}}

    def _followed(self) -> None:
        """Show the new weights to `fresh` pieces and to the target."""
        self.refresh()
        if self.target:
            self.target.follow(self.engine)
