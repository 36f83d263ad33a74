"""Environment `retry`: attempts at a question until one is right."""

from __future__ import annotations

from collections.abc import Mapping

from ratchet.components.errors import DataError
from ratchet.components.piece import build, piece
from ratchet.components.recipes.ranges import Bool, Count, RewardSpec
from ratchet.components.types import OK, Context, Group, Message, Observation, Prompt, Step, Trajectory


@piece(paper="arXiv:2507.14295")
class Retry:
    """Unary feedback (section 3 of the paper): a wrong attempt is answered by the same sentence, a right one
    ends the episode, and so does the last of `attempts`. The reward of an attempt is the verifier's; an empty
    one is invalid and gets 0.

    `always`: the sentence follows a right attempt too, so that it says nothing about the attempt; all
    `attempts` are made (self-correction, arXiv 2409.12917). Measures: `solved` (at any attempt), `first`
    (at the first), `last` (at the last; 0 if the episode was cut before it), `attempts` made, and the share
    of `distinct` ones among the valid.
    """

    def __init__(
        self,
        *,
        verifier: RewardSpec = {"name": "rewards.exact_answer"},  # noqa: B006  read only
        attempts: Count = 5,
        feedback: str = "Incorrect. Please think again.",
        always: Bool = False,
    ) -> None:
        self.verify, self.attempts, self.always = build("annotate", verifier), attempts, always
        self.feedback: Message = {"role": "user", "content": feedback}
        self.rewards: list[float] = []
        self.done = False
        self.tried: list[str] = []

    def begin(self, prompt: Prompt) -> Observation:
        self.prompt = prompt
        return Observation()

    def step(self, action: str) -> Step:
        text = " ".join(action.split()).casefold()
        self.rewards.append(self._reward(action) if text else 0.0)
        self.tried += [text] if text else []
        self.done = len(self.rewards) == self.attempts or (self.rewards[-1] >= 1 and not self.always)
        shown = () if self.done else (self.feedback,)
        return Step(Observation(shown, valid=bool(text)), self.rewards[-1], self.done)

    def score(self) -> Mapping[str, float]:
        right = [float(reward >= 1) for reward in self.rewards] or [0.0]
        return {
            "solved": max(right),
            "first": right[0],
            "last": right[-1] if self.done else 0.0,
            "attempts": float(len(self.rewards)),
            "distinct": len(set(self.tried)) / max(len(self.tried), 1),
        }

    def _reward(self, action: str) -> float:
        answer = Trajectory(({"role": "assistant", "content": action},))
        columns = self.verify([Group(self.prompt, (answer,))], Context())
        (name,) = (column for column in columns if not column.endswith(".status"))
        status = columns.get(f"{name}.status", [[OK]])[0][0]
        if status != OK:
            raise DataError(f"{name}: {status}")
        return float(columns[name][0][0])
