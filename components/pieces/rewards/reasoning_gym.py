"""The verifier that came with a procedural task."""

from __future__ import annotations

from ratchet.components.piece import each, piece
from ratchet.components.pieces.rewards.exact_answer import final_answer
from ratchet.components.recipes.ranges import Bool
from ratchet.components.types import Prompt, Trajectory


@piece(writes=("reward.reasoning_gym", "reward.reasoning_gym.status"), paper="arXiv:2505.24760", gold=True)
@each
def reasoning_gym(prompt: Prompt, trajectory: Trajectory, *, extract: Bool = True) -> float:
    """The score in [0, 1] that reasoning-gym's own data set gives. `prompt.meta` names it in `source_dataset` and holds its
    entry's `metadata`. `extract` hands over the last boxed answer or number instead of the whole text.
    """
    from reasoning_gym.factory import get_score_answer_fn

    name = prompt.meta.get("source_dataset") or prompt.meta.get("metadata", {}).get("source_dataset")
    if not name:
        raise ValueError(f"prompt {prompt.id!r}: meta names no `source_dataset`, so no verifier is known")
    entry = {"question": prompt.messages[-1]["content"], "answer": prompt.answer,
             "metadata": {"source_dataset": name, **prompt.meta.get("metadata", prompt.meta)}}
    answer = final_answer(trajectory.text) if extract else trajectory.text
    return float(get_score_answer_fn(name)(answer=answer, entry=entry))
