"""The Gaussian family: densities, outputs, saving, and the learner and engine that share them."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.distributions import Independent, Normal

from ratchet.components.errors import ContractError, RecipeError, SourceError
from ratchet.components.inference.arrays import ArrayEngine, verify_arrays
from ratchet.components.inference.choose import engine_of
from ratchet.components.inference.live import live_engine
from ratchet.components.models.families import new_model, save_family
from ratchet.components.models.load import load_model, load_tokenizer, save_model
from ratchet.components.pieces.families.gaussian import Gaussian, log_density
from ratchet.components.recipes.families import new_family
from ratchet.components.text.chat import count_tokens, encode
from ratchet.components.text.contract import contract_of
from ratchet.components.training.packing import pack
from ratchet.components.training.torch import TorchLearner
from ratchet.components.types import Group, Prompt, Request, Trajectory

SPEC = {"name": "gaussian", "observation": 3, "action": 2, "hidden": 8}
PROFILE = {"engine": "torch", "precision": "float32", "max_num_seqs": 4, "threads": None}


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    save_family(new_model(SPEC, seed=1), tmp_path / "policy")
    return tmp_path / "policy"


def trajectory(length: int, seed: int = 0) -> Trajectory:
    rng = np.random.default_rng([length, seed])
    steps = {
        "observations": rng.normal(size=(length, 3)).tolist(),
        "actions": rng.normal(size=(length, 2)).tolist(),
    }
    return Trajectory(({"role": "assistant", "content": "moved"},), steps, [True] * length, [0.0] * length)


def groups() -> list[Group]:
    return [Group(Prompt("a", ()), (trajectory(4), trajectory(2))), Group(Prompt("b", ()), (trajectory(3),))]


def test_a_density_worked_by_hand() -> None:
    """a = (1, 3), m = (0, 1), s = (1, 2): -1/2 (1 + 1) - log 2 - log 2 pi = -1 - 0.693147 - 1.837877."""
    found = log_density(
        torch.tensor([[1.0, 3.0]]), torch.tensor([[0.0, 1.0]]), torch.tensor([[0.0, math.log(2)]])
    )
    assert found.tolist() == pytest.approx([-3.531024], abs=1e-6)


@pytest.mark.parametrize("scale", ["learned", "observed"])
def test_outputs_equal_those_of_torch_distributions(scale: str) -> None:
    torch.manual_seed(0)
    model = Gaussian(
        observation=3, action=2, hidden=8, activation="silu", scale=scale, log_scale=0.3, values=True
    )  # type: ignore[arg-type]
    seen, noise = torch.randn(5, 3), torch.randn(5, 2)
    actions, logprobs = model.act(seen, noise)
    logs = torch.full((5, 2), 0.3) if scale == "learned" else seen[:, 2:].expand(5, 2)
    law = Independent(Normal(model.mean(seen), logs.exp()), 1)
    out = model.outputs(seen, actions, {"logprobs", "entropy", "values"})
    torch.testing.assert_close(actions, model.mean(seen) + logs.exp() * noise)
    torch.testing.assert_close(out["logprobs"], law.log_prob(actions))
    torch.testing.assert_close(logprobs, law.log_prob(actions))
    torch.testing.assert_close(out["entropy"], law.entropy())
    assert out["values"].tolist() == [0.0] * 5, "a new critic knows nothing"


def test_a_family_file_restores_the_model_and_new_values_are_zero(saved: Path, tmp_path: Path) -> None:
    assert json.loads((saved / "family.json").read_text())["observation"] == 3
    assert sorted(file.name for file in saved.iterdir()) == ["family.json", "model.safetensors"]
    model = load_model(saved, "policy_with_value")
    with torch.no_grad():
        model.value[-1].bias.fill_(2.0)  # type: ignore[index, union-attr, operator]
    save_model(model, load_tokenizer(saved), tmp_path / "critic")
    again = load_model(tmp_path / "critic", "policy_with_value")
    assert again.value[-1].bias.item() == 2.0  # type: ignore[index, union-attr, arg-type]
    alone = load_model(tmp_path / "critic", "policy")
    assert all(torch.equal(value, model.state_dict()[name]) for name, value in alone.state_dict().items())
    assert alone.value is None and not any(name.startswith("value") for name in alone.state_dict())


def test_a_family_file_of_other_sizes_is_refused(saved: Path) -> None:
    file = saved / "family.json"
    file.write_text(json.dumps({**SPEC, "layers": 3}))
    with pytest.raises(SourceError, match="belong together"):
        load_model(saved, "policy")
    file.write_text(json.dumps({**SPEC, "name": "gausian"}))
    with pytest.raises(SourceError, match="did you mean 'gaussian'"):
        load_model(saved, "policy")
    file.write_text("{")
    with pytest.raises(SourceError, match="expected the name of a model family"):
        load_model(saved, "policy")


def test_an_address_names_a_family_with_its_options() -> None:
    found = new_family("generate:gaussian?observation=3&action=2&activation=silu&log_scale=-0.5&seed=7")
    assert found is not None and found[1] == 7
    assert found[0] | {"activation": "silu", "log_scale": -0.5, "hidden": 64, "values": False} == found[0]
    assert new_family("generate:tiny?seed=0") is None and new_family("path:gaussian") is None
    with pytest.raises(RecipeError, match="needs 'action'"):
        new_family("generate:gaussian?observation=3")
    with pytest.raises(RecipeError, match="takes no 'hiden'"):
        new_family("generate:gaussian?observation=3&action=2&hiden=4")


def test_the_weights_depend_on_the_seed_alone() -> None:
    one, torch_state = new_model(SPEC, seed=3), torch.get_rng_state()
    two, other = new_model(SPEC, seed=3), new_model(SPEC, seed=4)
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), two.parameters(), strict=True))
    assert any(not torch.equal(a, b) for a, b in zip(one.parameters(), other.parameters(), strict=True))
    assert torch.equal(torch_state, torch.get_rng_state())


def test_learner_and_engine_agree_and_a_saved_learner_is_the_same(saved: Path, tmp_path: Path) -> None:
    learner = TorchLearner(saved, kind="policy_with_value", learning_rate=1e-2, gradient_checkpointing=True)
    engine, refresh = live_engine(PROFILE, learner, tmp_path / "current", "policy_with_value")
    before = engine.weights
    (batch,) = pack(groups(), unit="group", tokens=99)
    out = learner(batch, frozenset({"logprobs", "values"}))
    assert out.logprobs.shape == (3, 4) and out.logprobs[1, 2:].tolist() == [0.0, 0.0]
    learner.backward((out.values - 1).square().sum() - out.logprobs.sum())
    learner.step()
    refresh()
    assert engine.weights != before and not (tmp_path / "current").exists()
    learner.save(tmp_path / "trained")
    reloaded = ArrayEngine(tmp_path / "trained", kind="policy_with_value")
    asked = frozenset({"logprobs", "entropy", "values"})
    assert reloaded.score(groups(), asked) == engine.score(groups(), asked)
    assert [len(row) for row in engine.score(groups(), asked)[0]["values"]] == [4, 2]
    assert verify_arrays(tmp_path / "trained", learner, groups(), tokens=4, tolerance=1e-3) < 1e-5
    with pytest.raises(ContractError, match="differs from the trained one"):
        verify_arrays(saved, learner, groups(), tokens=4, tolerance=1e-3)


def test_steps_outside_the_loss_mask_have_no_log_prob(saved: Path) -> None:
    path = trajectory(3)
    whole = Group(Prompt("p", ()), (path, replace(path, mask=[True, False, True])))
    (batch,) = pack([whole], unit="group", tokens=100)
    found = TorchLearner(saved)(batch, frozenset({"logprobs"})).logprobs
    assert found[1, 1] == 0 and found[0, 1] != 0
    assert torch.equal(found[1, [0, 2]], found[0, [0, 2]])


def test_restore_resumes_bit_for_bit(saved: Path) -> None:
    def update(learner: TorchLearner) -> dict[str, float]:
        (batch,) = pack(groups(), unit="row", tokens=99)
        learner.backward(-learner(batch, frozenset({"logprobs"})).logprobs.sum())
        return learner.step()

    whole, first, second = (TorchLearner(saved, learning_rate=1e-2) for _ in range(3))
    numbers = [update(whole) for _ in range(4)]
    assert [update(first) for _ in range(2)] == numbers[:2]
    second.restore(first.state())
    assert [update(second) for _ in range(2)] == numbers[2:]


def test_sampled_log_probs_are_the_learners_and_depend_on_the_seed_alone(saved: Path) -> None:
    engine, learner = ArrayEngine(saved), TorchLearner(saved)
    seen = np.random.default_rng(0).normal(size=(4, 3)).astype(np.float32)
    actions, logprobs = engine.act(seen, [5, 6, 7, 8])
    alone, _ = engine.act(seen[2:3], [7])
    np.testing.assert_allclose(actions[2:3], alone, atol=1e-6)
    path = Trajectory(
        (), {"observations": seen.tolist(), "actions": actions.tolist()}, [True] * 4, logprobs.tolist()
    )
    (batch,) = pack([Group(Prompt("a", ()), (path,))], unit="row", tokens=9)
    ours = learner(batch, frozenset({"logprobs"})).logprobs[0]
    np.testing.assert_allclose(ours.detach().numpy(), logprobs, atol=1e-5)
    drawn = engine.act(np.zeros((4000, 3)), range(4000))[0]
    np.testing.assert_allclose(drawn.std(0), 1.0, atol=0.05)


def test_text_is_refused_by_engine_and_tokenizer(saved: Path) -> None:
    engine, prompt = engine_of(PROFILE, saved), Prompt("p", ({"role": "user", "content": "two words"},))
    answer = Trajectory(({"role": "assistant", "content": "hello"},))
    tokenizer = load_tokenizer(saved)
    assert count_tokens(tokenizer, prompt.messages) == 2
    for refused in (
        lambda: engine.generate([Request([1])]),
        lambda: engine.encode_prompt(prompt),
        lambda: engine.score([Group(prompt, (answer,))], frozenset({"logprobs"})),
        lambda: encode(tokenizer, prompt, answer),
        lambda: tokenizer.decode([1]),
    ):
        with pytest.raises(ContractError, match=r"gaussian.*control"):
            refused()
    with pytest.raises(ContractError, match="observations of 3 numbers"):
        engine.act(np.zeros((1, 4)), [0])


def test_engines_and_learners_of_language_models_refuse_a_family(saved: Path) -> None:
    deepspeed = pytest.importorskip("ratchet.components.training.deepspeed")
    with pytest.raises(ContractError, match="`engine: torch`, got 'vllm'"):
        engine_of({**PROFILE, "engine": "vllm"}, saved)
    with pytest.raises(ContractError, match="`learner: torch`"):
        deepspeed.DeepSpeedLearner(saved)
    with pytest.raises(ContractError, match="is a policy, got kind 'reward'"):
        load_model(saved, "reward")


def test_the_contract_is_the_sizes(saved: Path, tmp_path: Path) -> None:
    for name, change in {"wide": {"hidden": 16}, "other": {"observation": 4}}.items():
        save_family(new_model({**SPEC, **change}), tmp_path / name)
    contract_of(saved).check(contract_of(tmp_path / "wide"), "sizes")
    with pytest.raises(ContractError, match="vocabulary"):
        contract_of(saved).check(contract_of(tmp_path / "other"), "sizes")


def test_a_model_refuses_batches_of_tokens_and_of_other_sizes(saved: Path) -> None:
    learner = TorchLearner(saved)
    tokens = Group(Prompt("t", ()), (Trajectory((), {"tokens": [1, 2]}, [False, True]),))
    wide = Trajectory((), {"observations": [[0.0] * 4], "actions": [[0.0] * 2]}, [True])
    for group, got in ((tokens, "None and None"), (Group(Prompt("w", ()), (wide,)), "4 and 2")):
        (batch,) = pack([group], unit="row", tokens=9)
        with pytest.raises(ContractError, match=f"observations of 3 and actions of 2 numbers, got {got}"):
            learner(batch, frozenset({"logprobs"}))
