"""Environment `denoising`: the steps of a discrete diffusion model, one turn each."""

from __future__ import annotations

from collections.abc import Mapping

from ratchet.components.piece import piece
from ratchet.components.pieces.testbeds.noised_digits import is_image, state
from ratchet.components.recipes.ranges import Count
from ratchet.components.types import Observation, Prompt, Step


@piece(paper="arXiv:2311.13231")
class Denoising:
    """The decision process of denoising (D3PO, section 4.1): the state is (digit, t, x_t), the action
    x_(t-1), and the transition copies it. The prompt has the digit and x_T (testbed `noised_digits`), so that
    all episodes of a prompt begin with the same noise. The observation after an action is the digit
    (`prompt.answer`) and the number of steps that are left, "7 t2"; the last action is the image x_0. An
    episode has `steps` actions under every policy. There is no reward: a reward piece reads the last action.

    An action that is not 16 letters from A to P is invalid, and the process goes on from it. Measures:
    `drawn` (1 if the last action is an image), `errors` (invalid actions).
    """

    def __init__(self, *, steps: Count = 3) -> None:
        self.left, self.drawn, self.errors = steps, False, 0

    def begin(self, prompt: Prompt) -> Observation:
        self.digit = prompt.answer or ""
        return Observation()

    def step(self, action: str) -> Step:
        self.left, self.drawn = self.left - 1, is_image(action.strip())
        self.errors += not self.drawn
        shown = {"role": "user", "content": state(self.digit, self.left)}
        messages = () if self.left == 0 else (shown,)
        return Step(Observation(messages, self.drawn), done=self.left == 0)  # pyright: ignore[reportArgumentType]

    def score(self) -> Mapping[str, float]:
        return {"drawn": float(self.left == 0 and self.drawn), "errors": float(self.errors)}
