"""One episode: an environment, the actions so far with their results, and copies made by replaying them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any, final

from ratchet.components.errors import ContractError
from ratchet.components.protocols import Environment
from ratchet.components.types import Observation, Prompt, Step


@final
class Episode:
    """An environment made by `make` and started on a prompt. `opening`: its first observation; `actions`: all
    that were taken, of which the last has no result if the environment broke on it; `steps`: their results;
    `error`: why the environment broke, empty if it did not.
    """

    def __init__(self, make: Callable[[], Environment], prompt: Prompt) -> None:
        self.make, self.prompt = make, prompt
        self.actions: list[str] = []
        self.steps: list[Step] = []
        self.error, self.opening = "", Observation()
        self.environment: Environment | None = None
        try:
            self.environment = make()
            self.opening = self.environment.begin(prompt)
        except Exception as error:  # an environment may raise anything; the trajectory has failed
            self.error = _reason(error)

    def record(self, action: str, result: Any) -> Step | None:
        """Append an action and its result. None if the environment broke: the result is an exception, or no
        step that an episode may have.
        """
        self.actions.append(action)
        if not isinstance(result, Step | Exception):
            result = ContractError(f"step() must return a Step, not {type(result).__name__}")
        elif isinstance(result, Step) and not (
            result.done or result.truncated or result.observation.messages
        ):
            result = ContractError(
                "step() returned no message although the episode is neither done nor truncated"
            )
        if isinstance(result, Exception):
            self.error = _reason(result)
            return None
        self.steps.append(result)
        return result

    def score(self) -> dict[str, float]:
        """The environment's measures of the episode so far; empty if it broke, also in measuring."""
        if self.environment is None or self.error:
            return {}
        try:
            return dict(self.environment.score())
        except Exception as error:
            self.error = _reason(error)
            return {}

    def fork(self, models: Mapping[str, Any] | None = None) -> Episode:
        """Another episode in the same state, reached by executing all earlier actions again, which costs as
        much as the first time. `ContractError` if an observation or result differs from that of the first
        time: the environment depends on something else than its prompt and actions.
        """
        other = Episode(self.make, self.prompt)
        rule = "An environment must depend on its prompt and actions only"
        if other.opening != self.opening or (other.error and not self.error):
            raise ContractError(
                f"prompt {self.prompt.id!r}: an environment made again began with "
                f"{other.error or other.opening!r}, the first one with {self.opening!r}. {rule}"
            )
        for action, before in zip(self.actions, self.steps, strict=False):
            (now,) = step_all([other], [action], models or {})
            if now != before:
                raise ContractError(
                    f"prompt {self.prompt.id!r}: replaying the actions {self.actions!r} gave another result "
                    f"after {action!r}: expected {before!r}, got {other.error or now!r}. {rule}"
                )
        return other


def step_all(
    episodes: Sequence[Episode], actions: Sequence[str], models: Mapping[str, Any]
) -> list[Step | None]:
    """Take one action in each episode, with `models` by name for the environments that ask them
    (`step_many`), which are stepped together. An episode's result is None if its environment breaks; one that
    broke before takes no action.
    """
    results: dict[int, Any] = {}
    together: dict[Callable[..., Any], list[int]] = defaultdict(list)
    for i, (episode, action) in enumerate(zip(episodes, actions, strict=True)):
        environment = episode.environment
        if environment is None or episode.error:
            continue
        if many := getattr(type(environment), "step_many", None):
            together[many].append(i)
            continue
        try:
            results[i] = environment.step(action)
        except Exception as error:
            results[i] = error
    for many, indices in together.items():
        try:
            steps = list(
                many([episodes[i].environment for i in indices], [actions[i] for i in indices], models)
            )
            if len(steps) != len(indices):
                raise ContractError(
                    f"step_many() returned {len(steps)} steps for {len(indices)} environments"
                )
        except Exception as error:
            steps = [error] * len(indices)
        results.update(zip(indices, steps, strict=True))
    return [
        episode.record(action, results[i]) if i in results else None
        for i, (episode, action) in enumerate(zip(episodes, actions, strict=True))
    ]


def _reason(error: Exception) -> str:
    return f"environment: {type(error).__name__}: {error}"
