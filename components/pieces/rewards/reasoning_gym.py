"""Verifiable reward by reasoning-gym's own scorers."""

from __future__ import annotations

from ratchet.components.piece import each, piece
from ratchet.components.pieces.rewards.exact_answer import NUMBER, final_answer, last_boxed
from ratchet.components.recipes.ranges import Bool
from ratchet.components.types import Prompt, Trajectory


@piece(writes=("reward.reasoning_gym", "reward.reasoning_gym.status"), paper="arXiv:2505.24760", gold=True)
@each
def reasoning_gym(prompt: Prompt, trajectory: Trajectory, *, extract: Bool = True) -> float:
    """Score in [0, 1] by the reasoning-gym data set named in `prompt.meta["source_dataset"]`, with the
    entry's `metadata`. `extract`: of the text only the last boxed answer, or, where the reference answer is a
    number, the last number.
    """
    from reasoning_gym.factory import get_score_answer_fn

    name = prompt.meta.get("source_dataset") or prompt.meta.get("metadata", {}).get("source_dataset")
    if not name:
        raise ValueError(f"prompt {prompt.id!r}: meta has no `source_dataset`, which selects the verifier")
    entry = {
        "question": prompt.messages[-1]["content"],
        "answer": prompt.answer,
        "metadata": {"source_dataset": name, **prompt.meta.get("metadata", prompt.meta)},
    }
    answer = _extracted(trajectory.text, str(prompt.answer)) if extract else trajectory.text
    return float(get_score_answer_fn(name)(answer=answer, entry=entry))  # pyright: ignore[reportCallIssue]


def _extracted(text: str, reference: str) -> str:
    boxed = last_boxed(text)
    if boxed is not None:
        return boxed.strip()
    return final_answer(text) if NUMBER.fullmatch(reference.strip()) else text.strip()
