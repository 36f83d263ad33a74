"""The mean-pooled reward model against transformers and scikit-learn."""

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import (
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForTokenClassification,
    AutoTokenizer,
    GPT2Config,
    Olmo2Config,
)

from ratchet.components.errors import ContractError
from ratchet.components.evaluation.linear import choose_penalty
from ratchet.components.evaluation.scoring import rewards_of, settled
from ratchet.components.inference.torch import TorchEngine
from ratchet.components.models.forward import model_outputs, reward_states
from ratchet.components.models.load import load_reward, load_tokenizer, new_reward, save_model
from ratchet.components.models.reward import MeanReward, StandardisedHead
from ratchet.components.stages.probe import SavedReward, verify_saved
from ratchet.components.stages.reward import examine, linear_probe, score, score_in_memory, uneven
from ratchet.components.text.chat import encode_group
from ratchet.components.training.packing import pack
from ratchet.components.training.torch import TorchLearner
from ratchet.components.types import Context, Group, Prompt, Trajectory

SAID = [
    ("hello there", "what a lovely day"),
    ("how are you", "fine thanks"),
    ("tell me a joke", "no"),
    ("go on", "a long story follows"),
]


@pytest.fixture
def pairs(tiny_model):
    tokenizer = load_tokenizer(tiny_model)
    groups = []
    for i, (first, second) in enumerate(SAID):
        sides = [
            Trajectory(
                ({"role": "user", "content": first}, {"role": "assistant", "content": text}),
                meta={"conversation": str(i // 2)},
            )
            for text in (second, second[::-1] + first)
        ]
        group, _ = encode_group(
            tokenizer, Group(Prompt(f"p{i}", (), meta={"topic": str(i)}), tuple(sides)), 128
        )
        groups.append(group)
    return groups


@pytest.fixture
def saved(tiny_model, tmp_path):
    """A mean-pooled reward model of one layer with a nonzero head."""
    model = new_reward(tiny_model, pool="mean", layers=1)
    with torch.no_grad():
        model.score.weight.normal_()
    save_model(model, load_tokenizer(tiny_model), tmp_path)
    return tmp_path


def test_score_is_the_head_on_the_mean_of_the_answers_hidden_states(tiny_model, pairs, tmp_path):
    model = new_reward(tiny_model, pool="mean", layers=1)
    with torch.no_grad():
        model.score.weight.normal_()
        model.score.centre.normal_()
        model.score.scale.uniform_(0.5, 2)
    save_model(model, load_tokenizer(tiny_model), tmp_path)
    assert [file.name for file in tmp_path.glob("*.safetensors")] == ["model.safetensors"], (
        "vLLM would take another for the model's"
    )
    (batch,) = pack(pairs, unit="pair", tokens=1 << 12)
    with torch.no_grad():
        ours = model_outputs(load_reward(tmp_path), "reward", batch, frozenset({"scores"})).scores
        backbone = AutoModel.from_pretrained(tmp_path).float().eval()
        whole = AutoModelForTokenClassification.from_pretrained(tmp_path).float().eval()
        assert backbone.config.num_hidden_layers == 1
        for row, ids in enumerate(batch.inputs["tokens"]):
            chosen = batch.mask[row, : len(ids)]
            assert float(ours[row]) == pytest.approx(
                float(whole(input_ids=ids[None]).logits[0, chosen, 0].mean()), abs=1e-4
            )
            states = backbone(input_ids=ids[None]).last_hidden_state[0][chosen]
            x = (states.mean(0) - model.score.centre) / model.score.scale
            assert float(ours[row]) == pytest.approx(float(x @ model.score.weight[0]), abs=1e-4)


def test_reward_model_without_a_transformers_class_is_saved_as_its_body(tiny_model, pairs, tmp_path):
    config = Olmo2Config(
        vocab_size=len(load_tokenizer(tiny_model)),
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        attn_implementation="ratchet",
    )
    model = MeanReward(AutoModel.from_config(config), StandardisedHead(16)).eval()
    with torch.no_grad():
        model.score.weight.normal_()
    save_model(model, load_tokenizer(tiny_model), tmp_path)
    assert type(AutoModel.from_pretrained(tmp_path)).__name__ == "Olmo2Model"
    learner = TorchLearner(tmp_path, kind="reward")
    assert verify_saved(tmp_path, learner, pairs, kind="reward", tokens=256) < 1e-4
    assert SavedReward(tmp_path).padding(pairs) == {}, (
        "transformers alone cannot score with it, so its users cannot pad either"
    )


def spread_head(model):
    with torch.no_grad():
        model.score.weight.normal_(generator=torch.Generator().manual_seed(0))
    return model


@pytest.mark.parametrize("pool", ["last", "mean"])
def test_a_saved_reward_model_scores_the_same_padded_on_either_side(tiny_model, pairs, tmp_path, pool):
    """As a Llama does: its rotary positions are relative. The engine, which packs, agrees."""
    save_model(spread_head(new_reward(tiny_model, pool=pool)), load_tokenizer(tiny_model), tmp_path)
    saved = SavedReward(tmp_path)
    found = saved.padding(uneven(pairs))
    assert found["padding_side"] == "right" and set(found["padding_difference"]) == {"left", "right"}
    assert max(found["padding_difference"].values()) < 1e-4
    alone = [
        saved(torch.as_tensor(t.inputs["tokens"]), torch.as_tensor(t.mask)).item()
        for t in pairs[0].trajectories
    ]
    assert alone == pytest.approx(score(TorchEngine(tmp_path, kind="reward"), pairs[:1])[0], abs=1e-4)
    assert abs(alone[0] - alone[1]) > 1e-2


@pytest.mark.parametrize("pool", ["last", "mean"])
@pytest.mark.parametrize("side", ["left", "right"])
def test_learned_position_embeddings_make_left_padding_unsafe(tiny_model, pairs, tmp_path, pool, side):
    """transformers numbers GPT-2's positions from the first column; whether that fails is the saved
    tokenizer's to say. Its positions are just enough for the longest text.
    """
    tokenizer = AutoTokenizer.from_pretrained(tiny_model, padding_side=side)
    longest = max(len(t.inputs["tokens"]) for pair in pairs for t in pair.trajectories)
    torch.manual_seed(0)
    config = GPT2Config(
        vocab_size=len(tokenizer),
        n_embd=16,
        n_layer=1,
        n_head=2,
        n_positions=longest,
        eos_token_id=tokenizer.eos_token_id,
        bos_token_id=None,
        pad_token_id=tokenizer.pad_token_id,
    )
    save_model(AutoModelForCausalLM.from_config(config), tokenizer, tmp_path / "policy")
    save_model(spread_head(new_reward(tmp_path / "policy", pool=pool)), tokenizer, tmp_path / "reward")
    learner, found = TorchLearner(tmp_path / "reward", kind="reward"), {}
    verify_saved(
        tmp_path / "reward",
        learner,
        pairs,
        kind="reward",
        tokens=256,
        inspect=lambda saved: found.update(saved.padding(uneven(pairs))),
    )
    assert found["padding_side"] == side
    assert found["padding_difference"]["right"] < 1e-4 and found["padding_difference"]["left"] > 0.01
    certificate = examine(
        tmp_path / "reward",
        pairs,
        score_in_memory(learner, pairs, 256),
        {"min_accuracy": None},
        threads=1,
        **found,
    )
    remarks = (
        [note for note in certificate["notes"] if "accuracy" not in note]
        if side == "right"
        else certificate["reasons"]
    )
    assert (
        certificate["passed"] == (side == "right")
        and len(remarks) == 1
        and remarks[0].startswith("not safe to pad on the left")
    )


def test_padding_check_uses_pairs_of_different_length(pairs):
    lengths = [max(len(t.inputs["tokens"]) for t in pair.trajectories) for pair in pairs]
    assert [max(len(t.inputs["tokens"]) for t in pair.trajectories) for pair in uneven(pairs)] == [
        min(lengths),
        max(lengths),
    ]


@pytest.mark.parametrize("factor", [1.1, np.nan])
def test_reward_model_that_transformers_loads_differently_is_refused(saved, pairs, factor):
    """The head read by the training loop is compared by the certificate, below."""
    learner = TorchLearner(saved, kind="reward")
    assert verify_saved(saved, learner, pairs, kind="reward", tokens=256) < 1e-4
    tensors = {name: tensor.clone() for name, tensor in load_file(saved / "model.safetensors").items()}
    tensors["score.weight"] *= factor
    save_file(tensors, saved / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ContractError, match="differ"):
        verify_saved(saved, learner, pairs, kind="reward", tokens=256)


@pytest.mark.parametrize("pool", ["last", "mean"])
def test_linear_probe_is_scikit_learns_logistic_regression_on_the_frozen_features(tiny_model, pairs, pool):
    from sklearn.linear_model import LogisticRegression

    model = new_reward(tiny_model, pool=pool)
    found = linear_probe(model, [*pairs, pairs[0]], tokens=256)
    assert found["texts"] == 8  # the repeated pair is read once
    (batch,) = pack([*pairs, pairs[0]], unit="pair", tokens=1 << 12)
    with torch.no_grad():
        scores = model_outputs(model, "reward", batch, frozenset({"scores"})).scores.view(-1, 2)
        states = reward_states(model, batch).double().numpy()
    scale = states[:8].std(0)
    d = (states[0::2] - states[1::2]) / scale
    oracle = LogisticRegression(
        C=1 / (found["penalty"] * 2 * len(d)), fit_intercept=False, tol=1e-10, max_iter=10_000
    )
    oracle.fit(np.concatenate([d, -d]), np.repeat([1, 0], len(d)))
    assert np.allclose((scores[:, 0] - scores[:, 1]).numpy(), d @ oracle.coef_[0], atol=2e-3)


def test_penalty_is_chosen_without_a_topic_on_both_sides():
    rng = np.random.default_rng(0)
    signal = rng.normal(loc=[1.0, 0, 0], size=(80, 3))
    penalty, right = choose_penalty(signal, np.arange(80) % 8, (0.01, 1e4))
    assert penalty == 0.01 and right > 0.7
    assert choose_penalty(signal, np.zeros(80), (0.1, 1.0, 10.0)) == (1.0, None)


def test_batched_scores_equal_pair_by_pair(saved, pairs):
    """Windows of one conversation are scored in one pass; scores are the same as one by one."""
    engine = TorchEngine(saved, kind="reward")
    twice = [*pairs, pairs[0]]
    together = np.array(score(engine, twice))
    alone = np.array([list(engine.score([pair], frozenset({"scores"}))[0]["scores"]) for pair in twice])
    assert together.shape == (5, 2) and np.allclose(together, alone, atol=1e-5) and np.ptp(alone) > 0.1


def test_certificate_compares_saved_and_in_memory_scores(saved, pairs):
    learner = TorchLearner(saved, kind="reward")
    assert examine(saved, pairs, score_in_memory(learner, pairs, 256), {"min_accuracy": None}, threads=1)[
        "passed"
    ]
    with torch.no_grad():
        learner.model.score.weight += 0.01  # an update that never reached the disk
    certificate = examine(
        saved, pairs, score_in_memory(learner, pairs, 256), {"min_accuracy": None}, threads=1
    )
    assert not certificate["passed"] and "after saving and loading" in certificate["reasons"][0]
    assert certificate["conversations"] == 2 and certificate["accuracy"]["n"] == 1


def test_arms_scored_together_score_as_arm_by_arm(saved):
    """Each prompt is read once for all arms. An empty answer has no score and counts as the worst of all
    arms.
    """
    context = Context(models={"reward_model": TorchEngine(saved, kind="reward")}, seed=0)
    replies = {"base": [["yes", "no"], ["maybe"]], "policy": [["", "yes"], ["a long story follows", "fine"]]}
    answers = {
        arm: [
            Group(
                Prompt(str(i), ({"role": "user", "content": SAID[i][0]},)),
                tuple(Trajectory(({"role": "assistant", "content": text},)) for text in texts),
            )
            for i, texts in enumerate(rows)
        ]
        for arm, rows in replies.items()
    }
    together = rewards_of(answers, context, ["reward_model"])
    for arm, groups in answers.items():
        alone = rewards_of({arm: groups}, context, ["reward_model"])[arm]["reward.reward_model"]
        assert [len(row) for row in alone] == [len(g.trajectories) for g in groups]
        for one, other in zip(together[arm]["reward.reward_model"], alone, strict=True):
            assert one == [value if value is None else pytest.approx(value, abs=1e-5) for value in other]
    assert together["policy"]["reward.reward_model"][0][0] is None
    full, counts = settled(together)
    assert counts == {"answers without reward.reward_model": 1}
    worst = min(
        value
        for arm in together.values()
        for row in arm["reward.reward_model"]
        for value in row
        if value is not None
    )
    assert full["policy"]["reward.reward_model"][0][0] == worst and full["base"] == together["base"]
    assert full["base"]["reward.reward_model"][0][0] == pytest.approx(
        full["policy"]["reward.reward_model"][0][1], abs=1e-5
    )
