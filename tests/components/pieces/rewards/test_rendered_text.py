"""A reward model reads text rendered by its own chat template, never the policy's token ids or log-probs."""

from __future__ import annotations

from pathlib import Path

from ratchet.components.inference.torch import TorchEngine
from ratchet.components.models.load import load_tokenizer, new_reward, save_model
from ratchet.components.pieces.rewards.reward_model import reward_model
from ratchet.components.types import Context, Group, Prompt, Trajectory


def test_answer_is_retokenised_by_the_reward_models_tokenizer(tiny_model: Path, tmp_path: Path) -> None:
    save_model(new_reward(tiny_model, seed=0), load_tokenizer(tiny_model), tmp_path / "reward_model")
    engine = TorchEngine(tmp_path / "reward_model", kind="reward", threads=1)
    prompt = Prompt("p", ({"role": "user", "content": "do you like music?"},))
    answer = ({"role": "assistant", "content": "Yes, I like music a lot. Do you?"},)
    plain = Group(prompt, (Trajectory(answer),))
    letters = [
        t for c in answer[0]["content"] for t in engine.tokenizer(c, add_special_tokens=False)["input_ids"]
    ]
    count = len(letters)
    odd = Group(
        prompt,
        (Trajectory(answer, {"tokens": letters}, [True] * count, [-1.0] * count),),
        {"steps": [[0.5] * count]},
    )
    ctx = Context(models={"reward_model": engine})
    assert (
        reward_model([odd], ctx)["reward.reward_model"] == reward_model([plain], ctx)["reward.reward_model"]
    )
