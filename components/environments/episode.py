"""One episode: an environment, the actions so far and their results, and its copy by replay."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any, final

from ratchet.components.errors import ContractError
from ratchet.components.protocols import Environment
from ratchet.components.types import Observation, Prompt, Step


@final
class Episode:
    """An environment made by `make` and started on a prompt. `error`: why it broke; empty if it did not."""

    def __init__(self, make: Callable[[], Environment], prompt: Prompt) -> None:
        self.make, self.prompt = make, prompt
        self.actions: list[str] = []
        self.steps: list[Step] = []
        self.error, self.opening = "", Observation()
        try:
            self.environment = make()
            self.opening = self.environment.begin(prompt)
        except Exception as error:  # an environment may raise anything; the trajectory has failed
            self.error = _reason(error)

    def take(self, action: str, step: Step | Exception) -> Step | None:
        """Record the result of an action. None if the environment broke."""
        self.actions.append(action)
        if isinstance(step, Step) and not (step.done or step.truncated or step.observation.messages):
            step = ContractError("the environment neither ended nor said anything")
        if not isinstance(step, Step):
            self.error = _reason(step)
            return None
        self.steps.append(step)
        return step

    def score(self) -> dict[str, float]:
        """The environment's measures of the episode; empty if it broke."""
        try:
            return {} if self.error else dict(self.environment.score())
        except Exception as error:
            self.error = _reason(error)
            return {}

    def fork(self, models: Mapping[str, Any] | None = None) -> Episode:
        """Another episode in the same state, reached by replaying the actions. `ContractError` if a result
        differs from that of the first time: the environment depends on something else than its prompt.
        """
        other = Episode(self.make, self.prompt)
        for action, before in zip(self.actions, self.steps, strict=False):
            (now,) = step_all([other], [action], models or {})
            if now != before or other.opening != self.opening:
                raise ContractError(
                    f"prompt {self.prompt.id!r}: replaying the actions {self.actions!r} gave another result "
                    f"after {action!r}: expected {before!r}, got {now!r}. An environment must depend on its "
                    "prompt and actions only"
                )
        return other


def step_all(
    episodes: Sequence[Episode], actions: Sequence[str], models: Mapping[str, Any]
) -> list[Step | None]:
    """Take one action in each episode: its result, or None if its environment broke. Environments with
    `step_many`, which ask models, are stepped together.
    """
    found: list[Step | Exception] = [ContractError("not stepped")] * len(episodes)
    together: dict[Callable[..., Any], list[int]] = defaultdict(list)
    for i, (episode, action) in enumerate(zip(episodes, actions, strict=True)):
        if many := getattr(type(episode.environment), "step_many", None):
            together[many].append(i)
            continue
        try:
            found[i] = episode.environment.step(action)
        except Exception as error:
            found[i] = error
    for many, indices in together.items():
        try:
            steps: Sequence[Any] = many(
                [episodes[i].environment for i in indices], [actions[i] for i in indices], models
            )
        except Exception as error:
            steps = [error] * len(indices)
        for i, step in zip(indices, steps, strict=True):
            found[i] = step
    return [
        episode.take(action, step) for episode, action, step in zip(episodes, actions, found, strict=True)
    ]


def _reason(error: Exception) -> str:
    return f"environment: {type(error).__name__}: {error}"
