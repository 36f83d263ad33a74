"""Scores of answers by a trained reward model, in a notebook.

from ratchet import RewardModel
model = RewardModel("reward_model")  # a directory; that of a run is ratchet.load_run().reward_model()
model.score(["What colour is the sky?"], ["Blue."])  # array of one number
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ratchet.components.errors import DataError, RecipeError
from ratchet.components.types import Group, Message, Prompt, Trajectory

if TYPE_CHECKING:
    import numpy as np
    import torch


class RewardModel:
    """The reward model of a directory, in float32, on the GPU if there is one. `RecipeError` if it is not a
    model directory, `ContractError` if it does not fit on the GPU.
    """

    def __init__(self, path: str | Path) -> None:
        from ratchet.components.inference.torch import TorchEngine

        self.path = Path(path)
        if not (self.path / "config.json").is_file():
            raise RecipeError(f"{self.path} is not a model directory: config.json is missing")
        self._engine = TorchEngine(self.path, kind="reward")

    @property
    def module(self) -> torch.nn.Module:
        """The torch module: a sequence classifier of transformers, or one with a head of ours."""
        return self._engine.model

    def score(self, prompts: Sequence[str | Sequence[Message]], answers: Sequence[str]) -> np.ndarray:
        """The scores of one answer to each prompt, float64 (N,), in their order: logits of the Bradley-Terry
        model, so the difference of two answers to one prompt is the log-odds that the first is preferred. NaN
        for a blank answer. A prompt is the user's text, or a sequence of `Message`s: dictionaries {"role":
        "system", "user", "assistant" or "tool", "content": its text}.

        Raises `DataError` unless there are as many answers as prompts.
        """
        import numpy as np

        if len(prompts) != len(answers):
            raise DataError(
                f"reward model: {len(prompts)} prompts and {len(answers)} answers; expected one answer to "
                "each prompt"
            )
        groups = []
        for prompt, answer in zip(prompts, answers, strict=True):
            messages = (Message(role="user", content=prompt),) if isinstance(prompt, str) else tuple(prompt)
            trajectory = Trajectory((Message(role="assistant", content=answer),))
            groups.append(Group(Prompt(str(len(groups)), messages), (trajectory,)))
        rows = self._engine.score(groups, frozenset({"scores"}))
        scores = np.array([row["scores"][0] for row in rows], dtype=float)
        return np.where([bool(answer.strip()) for answer in answers], scores, np.nan)
