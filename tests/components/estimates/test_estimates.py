"""`plan --estimate` against real models: parameters, trainable parameters, activations saved by autograd."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest

from ratchet.components.errors import RecipeError
from ratchet.components.estimates.capacity import check_capacity
from ratchet.components.estimates.cost import START_SECONDS, Cost
from ratchet.components.estimates.costs import estimate
from ratchet.components.estimates.memory import (
    ENGINE,
    PROCESS,
    TOKENIZER,
    Layout,
    bounded,
    cache,
    kept_activations,
    scoring,
    trained,
    training,
    vllm_cache,
)
from ratchet.components.estimates.observed import Observed
from ratchet.components.estimates.rates import Rates, adapter_key, engine_devices, stated_rates
from ratchet.components.estimates.shape import Shape, count, read_shape, shape_of, tiny_shape
from ratchet.components.estimates.sizes import Sizes
from ratchet.components.estimates.split import Split
from ratchet.components.recipes.plan import plan
from ratchet.components.recipes.profile import Hardware, Profile, Vllm
from ratchet.components.recipes.recipe import load

LLAMA_8B = Shape(32, 4096, 32, 8, 128, 14336, 128256, False)
SMOL = Shape(30, 576, 9, 3, 64, 1536, 49152, True)
CONFIG = {
    "num_hidden_layers": 6,
    "hidden_size": 192,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "intermediate_size": 512,
    "vocab_size": 640,
    "tie_word_embeddings": True,
}


def real_model(sizes: dict = CONFIG):
    from transformers import LlamaConfig, LlamaForCausalLM

    from ratchet.components.models.attention import register

    register()
    model = LlamaForCausalLM(LlamaConfig(**sizes, attn_implementation="sdpa"))
    return model


def test_published_sizes() -> None:
    assert LLAMA_8B.parameters == 8_030_261_248 and SMOL.parameters == 134_515_008


def test_parameters_are_those_of_transformers(tmp_path: Path) -> None:
    model = real_model()
    shape = read_shape(CONFIG, "here")
    assert shape.parameters == sum(p.numel() for p in model.parameters())
    model.save_pretrained(tmp_path)
    assert sum(count(file) for file in tmp_path.glob("*.safetensors")) == shape.parameters


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize(
    "adapter",
    [
        {"name": "full"},
        {"name": "top_layers", "count": 2},
        {"name": "lora", "rank": 8},
        {"name": "steer", "rank": 4},
    ],
)
def test_trainable_parameters_equal_the_adapters(adapter: dict, tied: bool) -> None:
    from ratchet.components.piece import build

    sizes = {**CONFIG, "tie_word_embeddings": tied}
    model = build("adapter", adapter)(real_model(sizes))
    assert trained(read_shape(sizes, "here"), adapter)[0] == sum(
        p.numel() for p in model.parameters() if p.requires_grad
    )


def test_half_trains_half_of_the_layers_and_all_around_them() -> None:
    """Exactly so where all matrices of a kind have one size: with as many key as query heads."""
    from ratchet.components.piece import build

    sizes = {**CONFIG, "num_key_value_heads": 6}
    model = build("adapter", {"name": "half"})(real_model(sizes))
    layer = 4 * 192 * 192 + 3 * 192 * 512 + 2 * 192
    assert (
        trained(read_shape(sizes, "here"), {"name": "half"})[0]
        == sum(p.numel() for p in model.parameters() if p.requires_grad)
        == 3 * layer + 640 * 192 + 192
    )


def test_a_prompt_is_cached_once_or_once_a_row() -> None:
    """Two layers of 8 keys and 8 values of 4 bytes. 64 rows of one answer have 64 prompts, not 128; 64 rows
    of four answers have 16 prompts, and as many that wait.
    """
    shape = Shape(2, 8, 1, 1, 8, 8, 8, True)
    sizes = [cache(shape, prompt=100, answer=10, rows=64, each=each, bytes_each=4) for each in (1, 4)]
    assert sizes == [2 * 2 * 8 * 4 * (64 * 100 + 640), 2 * 2 * 8 * 4 * (32 * 100 + 640)]


def test_every_model_of_on_policy_steps_is_counted() -> None:
    """On profile gpu: weights and gradients of 2 bytes, AdamW with float32 weights of 12, a float32 output
    layer with its gradient; engines of 2 bytes with a float32 output layer; what follows slowly in 4 bytes.
    """
    updates = {"other": [{"name": "reinforce", "reduce": "row_sum"}]}
    role: dict = {"other": {"fit": {"updates": updates}}}
    head, size = 4 * SMOL.vocabulary * SMOL.hidden, SMOL.parameters

    def memory(*overrides: str) -> dict[str, float]:
        recipe, profile = load("rloo", profile="gpu", overrides=list(overrides))
        costs = estimate(recipe, profile, plan(recipe, profile), SMOL, {}, None)
        return dict(next(cost for cost in costs if cost.stage.does == "improve").memory)

    plain = memory()
    assert plain["roles"] == plain["other models"] == 0
    two = memory(f"online.roles={json.dumps(role)}")
    assert (two["roles"], two["other models"]) == (16 * size + 2 * head, 2 * size + head)
    assert two["activations"] == plain["activations"]
    role["other"]["target"] = {"name": "ema"}
    assert memory(f"online.roles={json.dumps(role)}")["other models"] == 6 * size + head
    kl = "online.watch.kl_prompts=4"
    assert memory(kl)["other models"] == 2 * size + head
    assert memory(kl, "online.reference={name: ema}")["other models"] == 4 * size
    assert memory(kl, "online.fit.adapter={name: lora}")["other models"] == 0, "its adapter is disabled"


def test_kept_groups_of_earlier_rounds_are_trained_on_again() -> None:
    recipe, profile = load("chat", profile="test", overrides=["online.keep_earlier=true"])
    stages = plan(recipe, profile)
    costs = {
        c.stage.name: c for c in estimate(recipe, profile, stages, SMOL, {"prompts": Split(600, 50.0)}, None)
    }
    assert costs["optimise_3"].learn == 3 * costs["optimise_1"].learn
    assert costs["select_3"].score == 3 * costs["select_1"].score


def test_activations_equal_tensors_saved_by_autograd(tiny_model: Path) -> None:
    """Bytes of all storages saved for backward by one packed row, without the parameters; within a fifth."""
    import json

    import torch

    from ratchet.components.models.load import load_policy
    from ratchet.components.types import Batch

    model = load_policy(tiny_model)
    shape = read_shape(json.loads((tiny_model / "config.json").read_text()), "tiny")
    own = {p.untyped_storage().data_ptr() for p in model.parameters()}
    tokens = 512
    batch = Batch(
        {"tokens": [torch.randint(5, shape.vocabulary, (tokens,))]},
        torch.tensor([[False] * (tokens - 1) + [True]]),
        {},
        torch.zeros(1, dtype=torch.long),
        torch.zeros(1, dtype=torch.long),
        ("one",),
    )
    kept: dict[int, int] = {}

    def keep(tensor):
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    from ratchet.components.models.forward import model_outputs

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda t: t):
        out = model_outputs(
            model, "policy", batch, frozenset({"logprobs"})
        )  # held: nothing is freed while we count
    assert out.logprobs.requires_grad
    expected = kept_activations(shape, tokens, shape.layers, bytes_each=4, checkpointing=False)
    assert sum(kept.values()) == pytest.approx(expected, rel=0.2)


def test_zero_stages_divide_memory_by_ranks() -> None:
    """16 bytes a parameter in mixed precision (arXiv 1910.02054, figure 1): 120 GB for 7.5B, 1.9 GB each on
    64 ranks at stage 3.
    """
    shape = Shape(1, 1, 1, 1, 1, 1, 1, True, counted=7_500_000_000)

    def held(stage: int) -> float:
        parts, _ = training(shape, {"name": "full"}, Layout(2, 12, 64, stage), 0)
        return sum(parts[name] for name in ("weights", "gradients", "optimiser")) / 1e9

    assert [round(held(stage), 1) for stage in (0, 1, 2, 3)] == [120.0, 31.4, 16.6, 1.9]


def test_tokens_and_seconds_by_hand() -> None:
    recipe, profile = load(
        "sft",
        profile="test",
        overrides=["sft.limit=100", "sft.fit.epochs=2", "sft.fit.validate_every=0", "evaluate=null"],
    )
    stages = plan(recipe, profile)
    full = adapter_key({"name": "full"})
    rates = Rates({full: 50.0}, {full: 0.5}, 100.0, 10.0, load=2.0)
    costs = {
        c.stage.name: c for c in estimate(recipe, profile, stages, SMOL, {"sft": Split(80, 30.0)}, rates)
    }
    assert costs["sft"].learn == 80 * 2 * 30 and costs["sft"].updates == 2 * 80 / 16
    assert costs["sft"].seconds == START_SECONDS + 80 * 2 * 30 / 50 + 10 * 0.5 + 3 * 2.0
    assert math.isnan(costs["curated"].seconds)


def test_max_steps_bounds_a_fit_on_data_of_unknown_size() -> None:
    recipe, profile = load("sft", profile="test", overrides=["sft.limit=null", "sft.fit.max_steps=5"])
    costs = {c.stage.name: c for c in estimate(recipe, profile, plan(recipe, profile), SMOL, {}, None)}
    assert costs["sft"].updates == 5
    assert costs["sft"].learn == 5 * recipe.sft.fit.batch * recipe.sft.max_tokens


def test_a_round_counts_what_it_samples_scores_and_learns() -> None:
    recipe, profile = load("chat", profile="test")
    splits = {"prompts": Split(600, 50.0), "sft": Split(290, 120.0), "reward": Split(500, 130.0)}
    costs = {c.stage.name: c for c in estimate(recipe, profile, plan(recipe, profile), SMOL, splits, None)}
    assert costs["rollout_1"].sample == 64 * 6 * 40
    assert costs["annotate_1"].score == pytest.approx(64 * (50 + 6 * 40) * 12 / 30), (
        "the reward model has 12 of 30 layers and reads a prompt once"
    )
    assert costs["annotate_2"].score - costs["annotate_1"].score == pytest.approx(24 * 90), (
        "the KL of 24 prompts"
    )
    assert costs["select_1"].score == 64 * (50 + 2 * 40), "pairs: two answers a prompt"
    assert costs["optimise_1"].learn == pytest.approx(64 * (50 + 2 * 40))


def test_an_earlier_run_says_how_long_answers_are_and_how_many_groups_are_kept() -> None:
    """Memory is counted at the maximum length as before."""
    recipe, profile = load("chat", profile="test")
    splits = {"prompts": Split(600, 50.0), "evaluate": Split(10, 50.0)}
    rounds = {
        f"rollout_{n}": {"tokens": 384 * mean, "counts": {"responses": 384}} for n, mean in ((1, 10), (2, 20))
    }
    kept = {
        "select_1": {"counts": {"groups before": 64, "groups after best_worst": 60, "groups after x": 16}}
    }
    seen = Observed.of({**rounds, **kept, "curated": {}})
    stages = plan(recipe, profile)
    bound = {c.stage.name: c for c in estimate(recipe, profile, stages, SMOL, splits, None)}
    costs = {c.stage.name: c for c in estimate(recipe, profile, stages, SMOL, splits, None, seen)}
    assert [costs[f"rollout_{n}"].sample for n in (1, 2)] == [64 * 6 * 10, 64 * 6 * 20]
    assert costs["rollout_3"].sample == 64 * 6 * 15, "a stage that did not run: the mean of the others"
    assert costs["annotate_1"].score == pytest.approx(64 * (50 + 6 * 10) * 12 / 30)
    assert costs["select_1"].score == 16 * (50 + 2 * 10)
    assert costs["optimise_1"].learn == pytest.approx(16 * (50 + 2 * 10))
    assert costs["select_2"].score == 64 * (50 + 2 * 20)
    assert costs["answers_base"].sample == bound["answers_base"].sample * 15 / 40
    for name in ("rollout_1", "optimise_1", "answers_base"):
        assert costs[name].memory == bound[name].memory
    improve, _ = load("rloo", profile="test")
    (steps,) = (
        c
        for c in estimate(
            improve, profile, plan(improve, profile), SMOL, {"prompts": Split(9, 8.0)}, None, seen
        )
        if c.stage.does == "improve"
    )
    options = steps.stage.options
    prompts, each = (
        options["rounds"] * options["prompts_per_round"],
        options["rollout"]["responses_per_prompt"],
    )
    assert steps.sample == prompts * each * 15
    assert steps.learn == pytest.approx(prompts * (8 + each * 15))


def test_data_that_a_stage_makes_from_answers_have_the_sizes_of_an_earlier_run() -> None:
    recipe, profile = load("instruct", profile="test")
    made = {"sft": Split(100, 60.0), "reward": Split(30, 70.0), "reward_validation": Split(8, 70.0)}
    seen = Observed.of(
        {"rollout_1": {"tokens": 200, "counts": {"responses": 10}}},
        {"demonstrations": made, "preferences": {**made, "reward": Split(90, 50.0)}},
    )
    stages = plan(recipe, profile)
    unknown = {c.stage.name: c for c in estimate(recipe, profile, stages, SMOL, {}, None)}
    costs = {c.stage.name: c for c in estimate(recipe, profile, stages, SMOL, {}, None, seen)}
    assert math.isnan(unknown["sft"].learn) and costs["sft"].learn == 2 * 100 * 60, "two epochs"
    both = 30 * (70 + 20) + 90 * (50 + 20)
    assert costs["reward"].learn == pytest.approx(both * 20 / 30, rel=0.02), "20 of 30 layers, mean lengths"
    assert costs["reward"].score == pytest.approx(8 * (70 + 20) * 20 / 30)
    assert costs["offline"].learn == pytest.approx(90 * (50 + 20)) and costs["pairs"].score == 90 * (50 + 20)


@pytest.mark.parametrize(("tokens", "engines"), [(2048, 1), (2049, 2), (10**6, 2)])
def test_engines_that_score_are_as_many_as_micro_batches(tokens: float, engines: int) -> None:
    recipe, profile = load("chat", profile="cpu")
    assert profile.engines == 2 and profile.tokens_per_microbatch == 2048
    sizes = Sizes(recipe, profile, SMOL, {})
    one = scoring(SMOL, profile, 2048)["activations"]
    assert sizes.scoring_memory(0, tokens=tokens)["activations"] == engines * one


def test_scores_that_choose_pairs_for_people_are_counted() -> None:
    people = "{name: rewards.people, labels: 12, simulated: [0.1], verifier: rewards.length, select: "
    asked = people + "[{name: best_worst, reward: reward.reward_model}]}"
    change = f"online.annotate=[{{name: rewards.reward_model, model: reward_model}}, {asked}]"
    select = "online.select=[{name: best_worst, reward: reward.people}]"
    recipe, profile = load("chat", profile="test", overrides=[change, select])
    splits = {"prompts": Split(600, 50.0), "sft": Split(290, 120.0), "reward": Split(500, 130.0)}
    costs = {c.stage.name: c for c in estimate(recipe, profile, plan(recipe, profile), SMOL, splits, None)}
    assert costs["propose_1"].score == pytest.approx(64 * (50 + 6 * 40) * 12 / 30)


@pytest.mark.parametrize(
    ("recipe", "stage", "rows"), [("rlvr_grpo", "improve", 1), ("online_dpo", "optimise_1", 2)]
)
def test_activations_depend_on_the_rows_of_one_unit(recipe: str, stage: str, rows: int) -> None:
    """Answers of a step are packed into micro-batches, so more answers per prompt need no more activation
    memory; a pair is never split.
    """
    found = []
    for answers in (4, 16):
        chosen, profile = load(
            recipe,
            profile="test",
            overrides=["online.rollout.max_tokens=1000", f"online.rollout.responses_per_prompt={answers}"],
        )
        costs = {
            c.stage.name: c
            for c in estimate(
                chosen, profile, plan(chosen, profile), SMOL, {"prompts": Split(600, 50.0)}, None
            )
        }
        found.append(costs[stage].memory["activations"])
    assert found[0] == found[1]
    wide, _ = training(
        SMOL, {"name": "full"}, Layout.of(profile), max(profile.tokens_per_microbatch, rows * 1050)
    )
    assert found[0] == wide["activations"]


def test_demonstrations_are_sampled_on_both_splits() -> None:
    recipe, profile = load("instruct", profile="test")
    splits = {"demonstrate": Split(240, 40.0), "demonstrate_validation": Split(40, 40.0)}
    costs = {c.stage.name: c for c in estimate(recipe, profile, plan(recipe, profile), SMOL, splits, None)}
    assert costs["demonstrated"].sample == (240 + 40) * 6 * 48
    assert costs["demonstrated"].score == (240 + 40) * 6 * (40 + 40 + 48), (
        "each prompt with an exchange before it; a verifier asks no model"
    )
    assert math.isnan(costs["compared"].sample), "the number of prompts is unknown before curation"


def test_every_member_of_an_ensemble_reads_every_answer() -> None:
    recipe, profile = load("reward_ensemble", profile="test")
    splits = {"prompts": Split(600, 50.0), "evaluate": Split(10, 50.0)}
    costs = {c.stage.name: c for c in estimate(recipe, profile, plan(recipe, profile), SMOL, splits, None)}
    assert costs["annotate_1"].score == 12 * (50 + 4 * 24) * 3
    assert costs["select_1"].score == 12 * (50 + 2 * 24)
    assert costs["evaluate"].score == 2 * 10 * (50 + 24) * (3 + 1), (
        "of two arms: answers by each reward model, and people's replies"
    )
    assert costs["answers_base"].score == 10 * 50, "the prompts"


@pytest.mark.parametrize(("recipe", "arms"), [("sft", 2), ("online_dpo", 2), ("chat", 3)])
def test_every_arm_of_the_evaluation_answers(recipe: str, arms: int) -> None:
    """The base model and the final one, and SFT between them where something was learnt after it."""
    chosen, profile = load(recipe, profile="test")
    assert chosen.evaluate
    costs = estimate(chosen, profile, plan(chosen, profile), SMOL, {"evaluate": Split(10, 50.0)}, None)
    sampled = [cost.sample or 0.0 for cost in costs if cost.stage.does == "answers"]
    assert len(sampled) == arms and costs[-1].stage.does == "evaluate" and costs[-1].models == arms
    assert sum(sampled) == arms * 10 * chosen.evaluate.responses_per_prompt * chosen.evaluate.max_tokens


def test_too_large_profile_is_refused_with_options_to_lower() -> None:
    recipe, profile = load("rlhf_workflow_8b", profile="gpu")
    costs = estimate(recipe, profile, plan(recipe, profile), LLAMA_8B, {}, None)
    with pytest.raises(
        RecipeError, match=r"'gpu'.*'sft'.*14\d\.\d GB.*optimiser 96\.4 GB.*80\.0 GB.*10%.*adapter"
    ):
        check_capacity(profile, costs, (1e15, 1e15))
    smaller = [f"{section}.fit.adapter={{name: lora}}" for section in ("sft", "reward", "online")]
    recipe, profile = load("rlhf_workflow_8b", profile="gpu", overrides=smaller)
    check_capacity(
        profile, estimate(recipe, profile, plan(recipe, profile), LLAMA_8B, {}, None), (1e15, 1e15)
    )


def test_fewer_tokens_are_not_advised_where_weights_alone_do_not_fit() -> None:
    """8 billion parameters in float32: 128 GB of weights, gradients and moments. Activations are larger
    still, but no number of tokens makes room for the rest.
    """
    recipe, profile = load("rlhf_workflow_8b", profile="cpu")
    costs = estimate(recipe, profile, plan(recipe, profile), LLAMA_8B, {}, None)
    (sft,) = [one for one in costs if one.stage.name == "sft"]
    large = replace(sft, memory={**sft.memory, "activations": 3e11})
    with pytest.raises(RecipeError, match="adapter") as refused:
        check_capacity(profile, [large], (2.5e10, 1e15))
    assert "tokens_per_microbatch" not in str(refused.value)
    with pytest.raises(RecipeError, match="lower tokens_per_microbatch"):
        check_capacity(profile, [large], (2.5e11, 1e15))


def test_the_shape_of_the_tiny_model_is_known_before_it_is_made(tiny_model: Path) -> None:
    made, known = shape_of(tiny_model), tiny_shape("generate:tiny?seed=0")
    assert replace(made, vocabulary=512, counted=None) == known and made.vocabulary <= 512
    assert known.parameters == pytest.approx(made.parameters, rel=0.01)
    assert tiny_shape("generate:tiny?layers=2&hidden=96").layers == 2


def test_host_memory_of_loading_grows_with_ranks_so_fewer_are_advised() -> None:
    """Every rank reads the weights in float32: 4 bytes x 8.03e9 parameters x 8 ranks = 257 GB."""
    recipe, profile = load("rlhf_workflow_8b", profile="node")
    costs = estimate(recipe, profile, plan(recipe, profile), LLAMA_8B, {}, None)
    small = replace(profile, hardware=replace(profile.hardware, host_memory_gb=200.0))
    with pytest.raises(RecipeError, match=r"need 25\d\.\d GB of host memory.*200\.0 GB.*fewer ranks"):
        check_capacity(small, costs, (1e15, 1e15))


def test_advice_for_a_stage_that_trains_nothing_names_nothing_of_training() -> None:
    """Weights are the largest part of sampling: an adapter or ZeRO would not make them smaller."""
    recipe, profile = load("rlhf_workflow_8b", profile="node")
    costs = estimate(recipe, profile, plan(recipe, profile), LLAMA_8B, {}, None)
    sampling = [replace(one, memory={"weights": 9e10}) for one in costs if one.stage.name == "rollout_1"]
    with pytest.raises(RecipeError, match="tensor_parallel") as refused:
        check_capacity(profile, sampling, (1e15, 1e15))
    assert "adapter" not in str(refused.value) and "zero_stage" not in str(refused.value)


def test_sampling_model_on_gpu_has_the_learners_precision() -> None:
    recipe, profile = load("rlhf_workflow_8b", profile="gpu")
    known = {
        c.stage.name: c.memory for c in estimate(recipe, profile, plan(recipe, profile), LLAMA_8B, {}, None)
    }
    weights, head = 2 * 8_030_261_248, 4 * 128256 * 4096
    reward_bytes = 2 * LLAMA_8B.first(recipe.reward.layers if recipe.reward else None).parameters
    assert known["select_1"]["weights"] == known["evaluate"]["weights"] == weights
    assert known["annotate_1"]["weights"] == 0, "nothing reads the policy in the first round"
    assert known["annotate_1"]["reward models"] == known["evaluate"]["reward models"] == reward_bytes
    assert known["select_1"]["output layer"] == head, "the softmax reads it in float32"
    assert "KV cache" not in known["annotate_1"], "nothing samples there"
    for stage in ("rollout_1", "answers_policy"):
        # 16,384 tokens through one layer in bfloat16, and three float32 tensors of 2^28 bytes of logits
        passing = 16_384 * 2 * 3 * (4096 + 4096 + 14336) + 12 * (2**28 // (4 * 128256)) * 128256
        assert known[stage]["scorer"] == pytest.approx(weights + head + passing), "vLLM has the rest"
    sft = known["sft"]
    assert sft["saving"] + sft["activations"] + sft["gradients"] == 2 * weights, (
        "read back in float32, where a step's own were before"
    )


def test_sampling_model_on_cpu_is_float32() -> None:
    import dataclasses

    recipe, profile = load("chat", profile="cpu")
    for precision in ("float32", "bfloat16"):
        chosen = dataclasses.replace(profile, learner="deepspeed", precision=precision)
        known = {
            c.stage.name: c.memory for c in estimate(recipe, chosen, plan(recipe, chosen), SMOL, {}, None)
        }
        assert known["select_1"]["weights"] == 4 * SMOL.parameters and not known["select_1"]["output layer"]


@pytest.mark.parametrize("profile", ["node", "cluster"])
def test_published_8b_setup_fits(profile: str) -> None:
    recipe, chosen = load("rlhf_workflow_8b", profile=profile)
    shape = read_shape(recipe.models["policy"].shape or {}, "recipe")
    assert shape == LLAMA_8B
    rates = stated_rates(recipe, chosen, shape, length=3072)
    costs = estimate(recipe, chosen, plan(recipe, chosen), shape, {}, rates)
    check_capacity(chosen, costs, (1e9, 1e9))  # what the profile states counts, not this machine
    assert all(c.seconds > 0 for c in costs if c.learn or c.sample)


def test_an_update_moves_the_trained_parameters_only() -> None:
    """28 bytes each, at 3350e9 B/s: the top ten layers of a policy, 12 of 30 layers of a reward model."""
    recipe, gpu = load("chat", profile="gpu")
    rates = stated_rates(recipe, gpu, SMOL, length=100)
    top = {"name": "top_layers", "count": 10}
    learns, _ = trained(SMOL, top)
    assert rates and 0 < learns < SMOL.parameters / 2
    assert rates.update[adapter_key(top)] == pytest.approx(28 * learns / 3350e9)
    recipe, gpu = load("chat", profile="gpu", overrides=["reward.fit.batch=16", "reward.fit.epochs=3"])
    splits = {name: Split(160, 50.0) for name in ("reward", "reward_validation")}
    costs = estimate(recipe, gpu, plan(recipe, gpu), SMOL, splits, None)
    (reward,) = (c for c in costs if c.stage.name == "reward")
    assert reward.updates == pytest.approx(12 / 30 * 3 * 160 / 16)


def test_pairs_of_a_prompt_share_it_where_an_earlier_run_says_how_many_prompts_there_were() -> None:
    """600 pairs of 40 + 20 tokens; the earlier run passed 4 prompts in each of 25 steps, 2 epochs of 50."""
    recipe, profile = load(
        "instruct", profile="test", overrides=["reward.fit.epochs=2", "reward.fit.batch=4"]
    )
    stages = plan(recipe, profile)
    pairs = {"reward": Split(400, 60.0), "reward_validation": Split(10, 60.0)}
    more = {"reward": Split(200, 60.0), "reward_validation": Split(10, 60.0)}
    data = {"preferences": pairs, "demonstrations": more}
    before = {"rollout_1": {"tokens": 200, "counts": {"responses": 10}}, "reward": {"steps": 25}}

    def reward(seen: Observed) -> Cost:
        costs = estimate(recipe, profile, stages, SMOL, {}, None, seen)
        return next(c for c in costs if c.stage.name == "reward")

    bound = reward(Observed.of({"rollout_1": before["rollout_1"]}, data))
    known = reward(Observed.of(before, data))
    assert bound.learn == pytest.approx(20 / 30 * 2 * 600 * (60 + 20))
    assert known.learn == pytest.approx(20 / 30 * (25 * 4 * 40 + 2 * 600 * 2 * 20))
    assert known.updates == pytest.approx(20 / 30 * 25)


def test_decoding_reads_weights_and_cache_in_the_engines_precision() -> None:
    rates = []
    for precision in ("float32", "bfloat16"):
        recipe, profile = load("rloo", profile="gpu")
        profile = replace(profile, engine="torch", precision=precision)
        rates.append(stated_rates(recipe, profile, LLAMA_8B, length=512))
    assert rates[1].sample == pytest.approx(2 * rates[0].sample)


def test_a_second_set_of_pairs_is_trained_on_too() -> None:
    assert Split(100, 30.0) + Split(300, 50.0) == Split(400, 45.0)


def test_training_and_sampling_are_divided_by_the_devices_of_all_machines() -> None:
    """4 × 8 GPUs of 989e12 FLOP/s, of which training reaches 25 % and scoring 18 %, and 3350e9 B/s at 60 %;
    P = 8,030,261,248 parameters.
    """
    recipe, cluster = load("rlhf_workflow_8b", profile="cluster")
    rates = stated_rates(recipe, cluster, LLAMA_8B, length=3072)
    costs = {
        c.stage.name: c.seconds - START_SECONDS
        for c in estimate(recipe, cluster, plan(recipe, cluster), LLAMA_8B, {}, rates)
    }
    trains, scores = 989e12 * 0.25, 989e12 * 0.18  # FLOP/s of a device
    passed = 2 * 8_030_261_248  # FLOP of a token forward
    # 20,000 prompts of 1,024 tokens, 8 answers of 2,048, all read by the reward model
    assert costs["annotate_1"] == pytest.approx(20_000 * (1024 + 8 * 2048) * passed / (32 * scores) + 60)
    # 512 rows at a time; a step reads the weights (2 P) and 512 × 3,072 tokens of 4 × 32 layers × 1,024 bytes
    step = (passed + 512 * 3072 * 4 * 32 * 1024) / (32 * 3350e9 * 0.6)
    prompts = 20_000 * 1024 * passed / (32 * scores)
    assert costs["rollout_1"] == pytest.approx(20_000 * 8 * 2048 / 512 * step + prompts + 60)
    # two answers a prompt, two epochs; forward, again for checkpointing, and backward: 4 passes
    # and 2 × 157 updates, which move 28 bytes a parameter at the bandwidth of all devices
    pairs, update = 20_000 * (1024 + 2 * 2048), 28 * 8_030_261_248 / (32 * 3350e9)
    assert costs["optimise_1"] == pytest.approx(pairs * 2 * 4 * passed / (32 * trains) + 314 * update + 180)
    # 500,000 texts of 8,192 tokens; 1,000 texts of validation 16 times, which the ranks share
    texts = 500_000 * 4 / trains + 16 * 1000 / scores
    assert costs["sft"] == pytest.approx(texts * 8192 * passed / 32 + 15_625 * update + 180)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"ranks": 32, "machines": 4}, 32),
        ({"ranks": 32, "machines": 4, "engines": 2}, 8),
        ({"ranks": 32, "machines": 4, "engine": "vllm", "vllm": Vllm(tensor_parallel=4)}, 32),
        ({"ranks": 32, "machines": 4, "engine": "vllm", "vllm": Vllm(server="http://there")}, 8),
        ({"ranks": 32, "machines": 4, "engines": 99}, 32),
        ({"ranks": 32}, 32),
    ],
)
def test_devices_of_the_engines(options: dict, expected: float) -> None:
    profile = Profile(learner="deepspeed", hardware=Hardware(devices=32), **options)
    assert engine_devices(profile) == expected


def test_unstated_hardware_is_this_machine() -> None:
    recipe, profile = load("chat", profile="cpu")
    costs = estimate(recipe, profile, plan(recipe, profile), SMOL, {}, None)
    check_capacity(profile, costs, (16e9, 100e9))
    with pytest.raises(RecipeError, match=r"tokens_per_microbatch.*200000.*gradient_checkpointing"):
        import dataclasses

        large = dataclasses.replace(profile, tokens_per_microbatch=200_000)
        recipe, _ = load("chat", overrides=["sft.fit.batch=2000"])
        check_capacity(large, estimate(recipe, large, plan(recipe, large), SMOL, {}, None), (16e9, 100e9))
    with pytest.raises(RecipeError, match=r"disk.*1\.0 GB"):
        check_capacity(profile, costs, (16e9, 1e9))


def test_unsupported_architecture_is_refused() -> None:
    with pytest.raises(RecipeError, match=r"num_hidden_layers, hidden_size"):
        read_shape(
            {"n_layer": 2, "vocab_size": 5, "intermediate_size": 3, "num_attention_heads": 2},
            "models.policy.shape",
        )


def test_hardware_section_changes_no_key() -> None:
    import dataclasses

    recipe, profile = load("chat")
    dear = dataclasses.replace(
        profile, hardware=dataclasses.replace(profile.hardware, price_per_hour=1000.0, watts=5.0)
    )
    assert {n: s.key for n, s in plan(recipe, profile).items()} == {
        n: s.key for n, s in plan(recipe, dear).items()
    }


def test_vllm_cache_holds_every_sequence_or_the_longest_one() -> None:
    """Two layers of 8 keys and 8 values of 2 bytes are 64 bytes a token. 4 sequences of 100 tokens take 7
    blocks of 16 tokens each; one of 4,096 tokens 256 blocks.
    """
    shape = Shape(2, 8, 1, 1, 8, 8, 8, True)
    short = Profile(engine="vllm", vllm=Vllm(max_model_len=64))
    assert vllm_cache(shape, short, length=100, rows=4) == 64 * 16 * 4 * 7
    long = Profile(engine="vllm", vllm=Vllm(max_model_len=4096))
    assert vllm_cache(shape, long, length=100, rows=4) == 64 * 16 * 256
    over_two = Profile(engine="vllm", vllm=Vllm(max_model_len=64, tensor_parallel=2))
    assert vllm_cache(shape, over_two, length=100, rows=4) == 32 * 16 * 4 * 7, (
        "each GPU has half of the heads"
    )
    exact = Profile(engine="vllm", vllm=Vllm(max_model_len=64, dtype="float32"))
    assert vllm_cache(shape, exact, length=100, rows=4) == 128 * 16 * 4 * 7
    given = Profile(engine="vllm", vllm=Vllm(cache_gb=3.5))
    assert vllm_cache(shape, given, length=100, rows=4) == 3.5 * 2**30


def test_vllm_cache_is_what_the_device_has_left() -> None:
    """LLaMA-3-8B: 131,072 bytes a token. 256 sequences of 3,072 tokens would take 103.1 GB; of 80 GB a tenth
    stays free, and one sequence of 8,192 tokens (1.07 GB) must fit.
    """
    recipe, profile = load("rlhf_workflow_8b", profile="gpu")
    asked = vllm_cache(LLAMA_8B, profile, length=3072, rows=256)
    assert asked == 131_072 * 3072 * 256
    costs = {c.stage.name: c for c in estimate(recipe, profile, plan(recipe, profile), LLAMA_8B, {}, None)}
    rollout = costs["rollout_1"]
    assert rollout.bytes == pytest.approx(72e9) and 30e9 < rollout.memory["KV cache"] < asked
    assert bounded({"weights": 9e9, "KV cache": asked}, LLAMA_8B, profile)["KV cache"] == 63e9
    assert bounded({"weights": 9e9, "KV cache": 5e9}, LLAMA_8B, profile)["KV cache"] == 5e9, "needs no more"
    full = bounded({"weights": 71.9e9, "KV cache": asked}, LLAMA_8B, profile)
    assert full["KV cache"] == 131_072 * 8192
    with pytest.raises(RecipeError, match=r"'rollout_1'.*KV cache 1\.1 GB"):
        check_capacity(profile, [replace(rollout, memory=full)], (1e15, 1e15))


def test_engines_that_share_a_machines_memory_are_counted_each() -> None:
    """Profile cpu has two engines. SmolLM: 46,080 bytes of keys and values a token. A prompt of `by_example`
    is preceded by another one of 50 tokens in the mean with its answer of 48, and 150 of them are answered
    once each; both engines map the same weights, and read a tokenizer each. On a GPU, every prompt has the
    place of the longest.
    """
    recipe, profile = load("instruct", profile="cpu")
    splits = {
        "demonstrate": Split(288, 50.0, 67.0),
        "demonstrate_validation": Split(40, 50.0, 67.0),
        "prompts": Split(600, 50.0, 72.0),
    }

    def memory(profile: Profile) -> dict[str, dict[str, float]]:
        costs = estimate(recipe, profile, plan(recipe, profile), SMOL, splits, None)
        return {c.stage.name: dict(c.memory) for c in costs}

    two, one = memory(profile), memory(replace(profile, engines=1))
    engine = ENGINE + TOKENIZER * SMOL.vocabulary
    assert one["demonstrated"]["KV cache"] == 46_080 * (150 * (2 * 50 + 48) + 150 * 48)
    assert one["rollout_1"]["KV cache"] == 46_080 * (2 * 38 * 50 + 150 * 48), "four answers a prompt"
    for stage in ("demonstrated", "rollout_1", "select_1"):
        for part in ("KV cache", "packed weights", "activations"):
            assert two[stage].get(part) == (2 * one[stage][part] if part in one[stage] else None)
        assert two[stage]["weights"] == one[stage]["weights"] == 4 * SMOL.parameters
        assert two[stage]["process"] == PROCESS + 2 * engine and one[stage]["process"] == PROCESS
    gpus = replace(profile, hardware=Hardware(memory_gb=24, devices=2))
    there = memory(gpus)
    assert there["select_1"]["process"] == PROCESS, "each engine has a device of its own"
    assert there["rollout_1"]["KV cache"] == 23_040 * (2 * 38 * 72 + 150 * 48)


def test_engines_without_a_slice_take_no_memory() -> None:
    """12 prompts of 4 answers are one slice of 150 rows."""
    recipe, profile = load("online_dpo", profile="cpu", overrides=["online.prompts_per_round=12"])
    costs = estimate(recipe, profile, plan(recipe, profile), SMOL, {"prompts": Split(31, 17.0, 22.0)}, None)
    (rollout,) = [c for c in costs if c.stage.name == "rollout_1"]
    assert rollout.memory["process"] == PROCESS + ENGINE + TOKENIZER * SMOL.vocabulary


def test_measures_that_read_a_language_model_are_counted_in_the_evaluation() -> None:
    """`fluency` reads every answer of three arms by the base model; `relevance`'s encoder is small."""
    splits = {"evaluate": Split(256, 60.0)}

    def score(*measures: str) -> float:
        named = f"evaluate.measures=[{', '.join(measures)}]"
        recipe, profile = load("instruct", profile="test", overrides=[named, "register=null"])
        costs = estimate(recipe, profile, plan(recipe, profile), SMOL, splits, None)
        return next(c.score for c in costs if c.stage.name == "evaluate")

    assert score("relevance") == score("repetition")
    assert score("fluency") - score("repetition") == pytest.approx(3 * 256 * (60 + 2 * 48))
