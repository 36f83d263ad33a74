"""A run's reward model, as a notebook reads it: scores of conversations."""

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
    """A reward model of a directory, in float32 on the host or in the precision of the GPU."""

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
        """The scores of one answer to each prompt, float64 (N,): logits of the Bradley-Terry model, so the
        difference of two answers to one prompt is the log-odds that the first is preferred. NaN for an empty
        answer. A prompt is the user's text, or its messages.

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
