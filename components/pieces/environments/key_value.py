"""Environment `key_value`: calls that read and write the values of named keys, with a check of the state."""

from __future__ import annotations

from collections.abc import Mapping

from ratchet.components.errors import DataError
from ratchet.components.piece import piece
from ratchet.components.recipes.ranges import Count
from ratchet.components.types import Message, Observation, Prompt, Step

DIGITS = tuple("0123456789")


@piece(paper="arXiv:2502.01600")
class KeyValue:
    """A small stateful API in the place of AppWorld (section 3 of the paper). One call a turn: "get a" is
    answered by the value of the key a, "set a 7" by "ok", and "done" ends the episode. Anything else (another
    word, an unknown key, a value that is no digit) changes nothing and is answered by "error", an invalid
    action. Calls are separated by spaces; the case matters. The episode is cut after `calls` calls.

    The prompt's meta has `state`, the values by key at the beginning, and `wanted`, those to be changed, each
    to a digit; `DataError` without them. Unit tests compare the state with them: one test a wanted key, and
    one that no other key has changed (collateral damage). The reward is 1 for "done" in a state that passes
    all, else 0.

    Measures: `solved` (the reward), `tests` (share of passed tests), `intact` (1 without collateral damage),
    `errors` and `calls` made.
    """

    def __init__(self, *, calls: Count = 8) -> None:
        self.limit, self.calls, self.errors, self.done = calls, 0, 0, False
        self.before: dict[str, str] = {}
        self.state: dict[str, str] = {}
        self.wanted: dict[str, str] = {}

    def begin(self, prompt: Prompt) -> Observation:
        missing = [name for name in ("state", "wanted") if not isinstance(prompt.meta.get(name), Mapping)]
        if missing:
            raise DataError(
                f"key_value: prompt {prompt.id!r} has no {' and no '.join(missing)} in its meta; use the "
                "testbed `copies`, or rows whose `meta` has both as objects of keys and values"
            )
        self.before, self.wanted = (
            {key: str(value) for key, value in prompt.meta[name].items()} for name in ("state", "wanted")
        )
        if unknown := sorted(set(self.wanted) - set(self.before)):
            raise DataError(
                f"key_value: prompt {prompt.id!r}: wanted keys without a value in state: {unknown}"
            )
        if wrong := {key: value for key, value in self.wanted.items() if value not in DIGITS}:
            raise DataError(
                f"key_value: prompt {prompt.id!r}: wanted values that no call can set, since they are no "
                f"digit: {wrong}"
            )
        self.state = dict(self.before)
        return Observation()

    def step(self, action: str) -> Step:
        self.calls += 1
        result = self._call(action.split())
        self.errors += result is None
        if self.done:
            return Step(reward=float(self._solved()), done=True)
        shown: Message = {"role": "tool", "content": "error" if result is None else result}
        return Step(Observation((shown,), valid=result is not None), 0.0, truncated=self.calls == self.limit)

    def score(self) -> Mapping[str, float]:
        passed = self._passed()
        return {
            "solved": float(self._solved()),
            "tests": sum(passed) / len(passed),
            "intact": float(passed[-1]),
            "errors": float(self.errors),
            "calls": float(self.calls),
        }

    def _call(self, words: list[str]) -> str | None:
        """Make a call: its result, None for an invalid one."""
        match words:
            case ["get", key] if key in self.state:
                return self.state[key]
            case ["set", key, value] if key in self.state and value in DIGITS:
                self.state[key] = value
                return "ok"
            case ["done"]:
                self.done = True
                return ""
        return None

    def _passed(self) -> list[bool]:
        """Results of the unit tests; the last is that of the keys that should not change."""
        found = [self.state[key] == value for key, value in self.wanted.items()]
        return [*found, all(self.state[k] == v for k, v in self.before.items() if k not in self.wanted)]

    def _solved(self) -> bool:
        return self.done and all(self._passed())
