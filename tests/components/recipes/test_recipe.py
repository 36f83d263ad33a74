"""Recipes: merging with a base, strict keys and types, column dataflow; every mistake is one sentence with a
fix.
"""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from ratchet.components.errors import RecipeError, nearest
from ratchet.components.recipes.changed_rounds import for_round
from ratchet.components.recipes.check import check
from ratchet.components.recipes.merging import merge
from ratchet.components.recipes.plan import plan
from ratchet.components.recipes.read_splits import read_splits
from ratchet.components.recipes.recipe import dump, load, load_profile, names
from ratchet.components.recipes.schema import Recipe
from ratchet.components.recipes.yaml_files import shipped
from ratchet.components.training.reward_columns import optimised_rewards
from tests.shipped import shipped_recipe


def write(tmp_path: Path, text: str) -> Path:
    file = tmp_path / "mine.yaml"
    file.write_text(text)
    return file


ONLINE = """
schema: 1
about: a test
base: online
online:
  rollout: {name: sample, responses_per_prompt: 4}
  annotate: [{name: rewards.exact_answer}, {name: advantages.centre, reward: reward.exact_answer}]
  fit:
    updates: {policy: [{name: reinforce}]}
"""


@pytest.mark.parametrize("name", names())
def test_every_recipe_that_ships_loads(name: str) -> None:
    recipe, profile = shipped_recipe(name)
    assert recipe.about and recipe.name == name
    again = yaml.safe_load(dump(recipe, profile))
    assert again["recipe"]["name"] == name


def test_overrides_merge_mappings_and_replace_lists_and_pieces() -> None:
    base = {"a": {"x": 1, "y": [1, 2]}, "p": {"name": "sample", "count": 8}}
    assert merge(base, {"a": {"y": [3]}}) == {"a": {"x": 1, "y": [3]}, "p": {"name": "sample", "count": 8}}
    assert merge(base, {"p": {"name": "sample", "max": 1}})["p"] == {"name": "sample", "count": 8, "max": 1}
    assert merge(base, {"p": {"name": "tree"}})["p"] == {"name": "tree"}


def test_a_file_without_its_ending_is_not_taken_for_a_name(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match=r"mine.*\.yaml"):
        load(tmp_path / "mine")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("onlin: {}", "'onlin'.*'online'"),
        ("online: {rolout: {name: sample}}", "online.rolout: .*'rollout'"),
        ("online: {fit: {learning_rat: 1}}", "'learning_rate'"),
        ("online: {rounds: many}", "online.rounds: .*'many'"),
        ("online: {cadence: steps}", "'steps'.*round, step"),
        (
            "online: {annotate: [{name: advantages.centre, reward: reward.reward_model}]}",
            r"online.annotate.*\['reward.reward_model'\]",
        ),
        ("online: {annotate: [{name: rewards.reward_model, model: jury}]}", "online.annotate.*'jury'"),
        (
            "online: {fit: {updates: {policy: [{name: preference.dpo, reduce: token_mean}]}}}",
            "logprobs.reference|token_mean",
        ),
        ("online: {fit: {updates: {policy: []}}}", r"online.fit.updates: .*preference\.dpo"),
        ("reward: {fit: {updates: {reward_model: []}}}", r"`reward_model: \[.*ranking\.bradley_terry"),
        ("base: onlne", "'onlne'.*'online'"),
        ("schema: 7", "schema: 1.*got 7"),
        ("profile: gpuu", "profile.*'gpuu'"),
        (
            "online: {by_round: {2: {fit: {updates: {policy: [{name: clip}]}}}}}",
            r"online.by_round.2.fit.updates.policy: 'clip' .*\['logprobs.old'\]",
        ),
        (
            "online: {roles: {critic: {fit: {updates: {critic: [{name: value}]}}}}}",
            "online.roles: .*critic.*`cadence: round`.*`cadence: step`",
        ),
        (
            "online: {cadence: step, roles: {initial: {fit: {updates: {initial: [{name: likelihood}]}}}}}",
            "online.roles.initial: ",
        ),
        (
            "online: {cadence: step, roles: {critic: {start: 9, fit: {updates: {critic: [{name: kto}]}}}}}",
            "online.roles.critic.start: .* 9",
        ),
        (
            "online: {cadence: step, roles: {critic: {fit: {updates: {critic: [{name: value}]}}}}}",
            r"online.roles.critic.fit.updates.critic: 'value' .*\['returns', 'values.old'\]",
        ),
        (
            "online: {cadence: step, prompts: {name: difficulty_pool, reward: reward.reward_model}}",
            r"online.prompts: .*\['reward.reward_model'\]",
        ),
        (
            "online: {reference: {name: ema}}",
            "online.reference: .*`cadence: round`.*`initial`.*`previous`",
        ),
        (
            "online: {cadence: step, reference: previous}",
            "online.reference: .*'previous'.*`cadence: step`",
        ),
        (
            "online: {cadence: step, reference: {name: emma}}",
            "online.reference: .*'emma'.*'ema'",
        ),
        ("online: {reference: first}", "'first'.*initial, previous"),
        (
            "evaluate: {metrics: [{name: rewards.reward_model, model: safety}]}",
            "evaluate.metrics: .*'safety'",
        ),
        (
            "evaluate: {metrics: [{name: advantages.centre, reward: reward.reward_model}]}",
            r"evaluate.metrics: .*\['reward.reward_model'\]",
        ),
        ("online: {by_round: {3: {}}}", "online.by_round.*3"),
    ],
)
def test_recipe_errors_are_one_sentence(tmp_path: Path, change: str, message: str) -> None:
    whole = yaml.safe_load(ONLINE)
    changed = {**merge(whole, yaml.safe_load(change))}
    with pytest.raises(RecipeError, match=message):
        load(write(tmp_path, yaml.safe_dump(changed)))


@pytest.mark.parametrize(
    ("word", "known", "hint"),
    [
        ("polcy", ["policy", "reward"], "; did you mean 'policy'?"),
        ("stf", ["sft", "reward"], "; did you mean 'sft'?"),
        ("K1", ["k1", "k2"], "; did you mean 'k1'?"),
        ("hiden", ["hidden_size", "layers"], "; did you mean 'hidden_size'?"),
        ("trainer", ["register", "sft"], "; known: register, sft"),
        ("nosuch", ["instruct"], "; known: instruct"),
        ("nosuch", [], ""),
    ],
)
def test_only_a_similar_word_is_suggested(word: str, known: list[str], hint: str) -> None:
    assert nearest(word, known) == hint


def test_duplicate_key_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match=r"rounds.*line 11"):
        load(write(tmp_path, f"{ONLINE}  rounds: 2\n  rounds: 3\n"))


def test_null_removes_a_key_of_the_base() -> None:
    recipe, _ = load(
        "chat",
        overrides=[
            "register.gates=null",
            "online.health=null",
            "online.watch.gold=null",
            "sft.fit.max_grad_norm=null",
            "online.rollout.temperature=null",
            "claim=null",
        ],
    )
    assert recipe.register and recipe.online and recipe.sft
    assert (
        recipe.register.gates,
        recipe.online.health,
        recipe.online.watch.gold,
        recipe.sft.fit.max_grad_norm,
    ) == ({}, {}, False, None)
    assert recipe.online.rollout["temperature"] == 1.0 and recipe.claim is None
    online, _ = load(
        "online_dpo",
        overrides=[
            "data.splits.reward=null",
            "data.splits.reward_validation=null",
            "reward=null",
            "online.annotate=[rewards.length]",
            "online.select=[{name: best_worst, reward: reward.length}]",
            "evaluate=null",
            "register=null",
        ],
    )
    assert list(online.data.splits or ()) == ["prompts", "evaluate"]


def test_equivalent_spellings_give_the_same_keys() -> None:
    def keys(*overrides: str) -> list[str]:
        return [stage.key for stage in plan(*load("online_dpo", overrides=overrides)).values()]

    assert keys() == keys(
        "online.fit.weight_decay=0",
        "data.near_threshold=0.8",
        "online.prompts=disjoint",
        "data.languages=null",
    )


def test_an_item_of_a_list_is_changed_by_its_number() -> None:
    recipe, _ = load(
        "chat",
        overrides=[
            "data.transforms.6.max_turns=12",
            "data.transforms.0=null",
            "online.annotate.1={name: rewards.length}",
            "online.select.0.reward=reward.length",
        ],
    )
    assert [t["name"] for t in recipe.data.transforms][:2] == [
        "remove_broken",
        "scrub",
    ] and recipe.data.transforms[-1]["max_turns"] == 12
    assert recipe.online and [a["name"] for a in recipe.online.annotate] == [
        "rewards.reward_model",
        "rewards.length",
    ]
    assert merge({"a": ["normalise"]}, {"a": {"0": {"quotes": False}}}) == {
        "a": [{"name": "normalise", "quotes": False}]
    }


def test_base_may_be_a_file_but_not_one_based_on_a_recipe(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text("{}")
    own = write(
        tmp_path,
        "schema: 1\nbase: online_dpo\nabout: its method, my data\ndata: {source: 'path:rows.jsonl'}\n",
    )
    first, shipped = load(own)[0], load("online_dpo")[0]
    assert first.online == shipped.online and (first.name, first.claim, first.data.source) == (
        "mine",
        None,
        f"path:{tmp_path}/rows.jsonl",
    )
    (tmp_path / "below").mkdir()
    second = tmp_path / "below" / "second.yaml"
    for base, under in (("dpo_hh", "reward_hh"), ("../mine.yaml", "online_dpo")):
        second.write_text(f"schema: 1\nbase: {base}\n")
        with pytest.raises(
            RecipeError,
            match=rf"second\.yaml: its base '{re.escape(base)}' has the base '{under}'.*; copy "
            rf"\S*{Path(base).stem}\.yaml to "
            rf"a file of your own and change that, or use '{under}' or one of .*chat",
        ):
            load(second)
    write(
        tmp_path,
        own.read_text().replace("online_dpo", "online").replace("its method, my data", "mine")
        + "online: {fit: {updates: {policy: [likelihood]}}}\n",
    )
    assert load(second)[0].data.source == f"path:{tmp_path}/rows.jsonl", (
        "a path is relative to the file that names it"
    )


def test_about_and_paper_are_not_inherited_from_a_shipped_recipe(tmp_path: Path) -> None:
    """`about` and `paper` stand in the report, MLflow, Prefect and the model card, whatever the data of the
    user is.
    """
    own, none, words = (tmp_path / f"{name}.yaml" for name in ("own", "none", "words"))
    own.write_text("schema: 1\nbase: sft_gsm8k\n")
    assert (load(own)[0].about, load(own)[0].paper) == ("own, over sft_gsm8k.", "")
    words.write_text("schema: 1\nbase: sft_gsm8k\nabout: My own words.\npaper: arXiv:2203.02155\n")
    assert (load(words)[0].about, load(words)[0].paper) == ("My own words.", "arXiv:2203.02155")
    none.write_text("schema: 1\nbase: sft\n")
    assert load(none)[0].about == "Supervised fine-tuning on conversations.", "of a base: true for any data"


# Shipped recipes that learn from rewards without watching `equal_rewards`, and why.
UNWATCHED = {
    **dict.fromkeys(
        ("instruct", "instruct_offline"), "a verifier labels each pair: the reward model only proposes it"
    ),
    "instruct_reward_labels": "a reward model gives no two answers one reward; its certificate bounds ties",
}


def test_recipes_that_learn_from_rewards_watch_equal_rewards() -> None:
    """500 steps on a reward of 0 teach nothing and look like any other run."""
    learn = {
        name: one.online.health
        for name in names()
        if (one := shipped_recipe(name)[0]).online
        and optimised_rewards(one.online.annotate, one.online.select, one.online.fit.updates)
    }
    assert (
        {name for name, rules in learn.items() if "equal_rewards" not in rules}
        <= set(UNWATCHED)
        <= set(learn)
    )
    assert {"online_dpo", "raft", "reward_ensemble", "rlvr_grpo", "ppo", "rloo", "chat"} <= set(learn)


def test_every_split_that_a_recipe_makes_is_read() -> None:
    """A split that nothing reads loses its share of the data. The controls of a recipe share its splits, and
    so its prompts.
    """
    instruct = read_splits(shipped_recipe("instruct")[0])
    for name in names():
        recipe, _ = shipped_recipe(name)
        lost = set(recipe.data.splits or ()) - read_splits(recipe)
        base = yaml.safe_load(shipped()[name].read_text())["base"]
        shared = read_splits(shipped_recipe(base)[0]) if base in names() else set()
        shared |= instruct if name.startswith(("instruct_", "sentiment_", "label_")) else set()
        assert lost <= shared, f"{name}: {lost}"


def test_a_second_set_of_pairs_is_read_beside_those_that_demonstrate_makes() -> None:
    also = ["reward.also=pairs", "data.splits.pairs=0.1"]
    alone = ["preferences=null", "demonstrate.reward=[{name: contrast}]"]
    assert "pairs" in read_splits(load("instruct", overrides=[*also, *alone])[0])
    with pytest.raises(
        RecipeError, match=r"reward\.also: got 'pairs', but the pairs of `demonstrate\.reward`"
    ):
        load("instruct", overrides=also)


def test_gates_on_endings_and_repetition() -> None:
    """A reward can rise while answers are cut off or repeat themselves: no such version becomes champion."""
    gates = {
        name: set(one.register.gates)
        for name in ("chat", "instruct", "instruct_rlvr")
        if (one := shipped_recipe(name)[0]).register
    }
    assert {"final.ended", "final.repetitive"} <= gates["chat"] and all(
        {"ending_vs_base", "repetition_vs_base"} <= gates[name] for name in ("instruct", "instruct_rlvr")
    )


def test_column_written_twice_is_an_error(tmp_path: Path) -> None:
    whole = yaml.safe_load(ONLINE)
    whole["online"]["annotate"].append({"name": "advantages.centre", "reward": "reward.exact_answer"})
    with pytest.raises(RecipeError, match=r"\['advantages'\]"):
        load(write(tmp_path, yaml.safe_dump(whole)))


def test_evaluation_accepts_an_additional_reward_model(tmp_path: Path) -> None:
    """A safety classifier, say: its mean is `final.reward.safety`, which a gate reads."""
    own = {
        "models": {"safety": {"source": f"path:{tmp_path}", "format": "huggingface", "sha256": None}},
        "evaluate": {"metrics": [{"name": "rewards.reward_model", "model": "safety"}]},
    }
    recipe, profile = load(write(tmp_path, yaml.safe_dump(merge(yaml.safe_load(ONLINE), own))))
    assert plan(recipe, profile)["evaluate"].inputs["safety"] == "model_safety"


def test_gate_on_an_added_metric(tmp_path: Path) -> None:
    gates = {
        "final.reward.safety": {"over": 0.9},
        "win_rate_safety_vs_base": {"over": 0.5, "interval": True},
        "win_rate_safety_vs_base.low": {"over": 0.4},
    }
    own = merge(
        yaml.safe_load(ONLINE),
        {"models": {"safety": {"source": f"path:{tmp_path}"}}, "register": {"gates": gates}},
    )
    with pytest.raises(RecipeError, match=r"register\.gates\.final\.reward\.safety"):
        load(write(tmp_path, yaml.safe_dump(own)))
    added = {"metrics": [{"name": "rewards.reward_model", "model": "safety"}]}
    assert load(write(tmp_path, yaml.safe_dump(merge(own, {"evaluate": added}))))
    with pytest.raises(RecipeError, match=r"register\.gates.*`evaluate`"):
        load(write(tmp_path, yaml.safe_dump({**own, "evaluate": None})))
    later = {
        "evaluate": added,
        "register": {"gates": {"win_rate_safety_vs_sft": {"over": 0.5}}},
    }  # there is no SFT stage to win against
    with pytest.raises(RecipeError, match=r"win_rate_safety_vs_sft.*'win_rate_safety_vs_base'"):
        load(write(tmp_path, yaml.safe_dump(merge(own, later))))
    without, _ = load(
        "chat", overrides=["evaluate.perplexity_rows=0", "register.gates.perplexity_ratio=null"]
    )
    assert (
        without.register
        and "perplexity_ratio" not in without.register.gates
        and "length_ratio" in without.register.gates
    )


@pytest.mark.parametrize(
    "change",
    [
        "register.champion.score=reward.reward_model",
        "register.gates.win_rate_reward_model_vs_sft={over: 0.5, interval: true}",
        "register.gates.final.reward.reward_model={over: 0.5}",
        "register.gates.reward.reward_model_gain_vs_base={over: 0.0}",
    ],
)
def test_gate_on_the_optimised_reward_model_is_an_error(change: str) -> None:
    key, value = change.split("=", 1)
    name = key.removeprefix("register.gates.")
    changes = (
        {"register": {"gates": {name: yaml.safe_load(value)}}}
        if name != key
        else {"register": {"champion": {"score": value}}}
    )
    with pytest.raises(RecipeError, match=r"'reward_model'"):
        check(recipe_with("chat", changes), {})


def test_gates_on_verifiers_and_reward_models() -> None:
    for name, changes in {
        "instruct_rlvr": {},
        "chat": {"register": {"gates": {"win_rate_reward_model_vs_sft": {"below": 0.9}}}},
    }.items():
        check(recipe_with(name, changes), {})


def recipe_with(name: str, changes: dict[str, Any]) -> Recipe:
    """A shipped recipe with keys changed, names with dots in them included."""
    recipe, _ = load(name)
    assert recipe.register is not None
    champion = dataclasses.replace(
        recipe.register.champion, **changes.get("register", {}).get("champion", {})
    )
    gates = {**recipe.register.gates, **changes.get("register", {}).get("gates", {})}
    return dataclasses.replace(
        recipe, register=dataclasses.replace(recipe.register, champion=champion, gates=gates)
    )


def test_a_transform_may_be_a_word_alone() -> None:
    recipe, profile = load("sft", overrides=["data.transforms=[normalise, {name: length, max_turns: 9}]"])
    written_out = [
        {"name": "normalise", "quotes": True},
        {"name": "length", "min_turns": 2, "max_turns": 9, "max_tokens": 2048},
    ]
    assert recipe.data.transforms == written_out and plan(recipe, profile)


def test_overrides_and_a_missing_file(tmp_path: Path) -> None:
    file = write(tmp_path, ONLINE)
    recipe, _ = load(file, overrides=["online.rounds=7", "online.fit.learning_rate=1e-3"])
    assert recipe.online is not None and recipe.online.rounds == 7 and recipe.online.fit.learning_rate == 1e-3
    with pytest.raises(RecipeError, match=r"online\.rounds"):
        load(file, overrides=["online.rounds"])
    with pytest.raises(RecipeError, match="'chatt'"):
        load("chatt")
    with pytest.raises(RecipeError, match=r"absent\.yaml"):
        load(tmp_path / "absent.yaml")
    with pytest.raises(RecipeError, match="YAML"):
        load(write(tmp_path, "a: [1"))


def test_one_round_is_equal_from_a_file_and_from_the_command_line(tmp_path: Path) -> None:
    """YAML reads 2 as a number, `--set online.by_round.2…` is a word."""
    file = write(tmp_path, f"{ONLINE}  by_round: {{2: {{fit: {{learning_rate: 1.0e-5}}}}}}\n")
    recipe, _ = load(file, overrides=["online.by_round.2.fit.epochs=2"])
    assert recipe.online is not None
    second = for_round(recipe.online, 2)
    assert (second.fit.learning_rate, second.fit.epochs) == (1e-5, 2) and for_round(
        recipe.online, 1
    ).fit.epochs == 1


def test_a_profile_is_a_name_or_a_file(tmp_path: Path) -> None:
    file = write(tmp_path, ONLINE)
    own = tmp_path / "ours.yaml"
    own.write_text("threads: 3\nvllm: {python: /opt/vllm/bin/python}\n")
    recipe, hardware = load(file, profile=str(own))
    assert (recipe.profile, hardware.name, hardware.threads, hardware.vllm.python) == (
        str(own),
        "ours",
        3,
        "/opt/vllm/bin/python",
    )
    own.write_text("thread: 3\n")
    with pytest.raises(RecipeError, match=r"profile .*ours.*'thread'.*'threads'"):
        load(file, profile=str(own))
    with pytest.raises(RecipeError, match=r"absent\.yaml"):
        load(file, profile=str(tmp_path / "absent.yaml"))


def test_the_longest_prompt_and_its_answer_fit_into_vllm(tmp_path: Path) -> None:
    own = tmp_path / "ours.yaml"
    own.write_text("engine: vllm\nvllm: {max_model_len: 136}\n")
    assert load("chat", profile=str(own))
    with pytest.raises(RecipeError, match=r"profile ours: vllm\.max_model_len.*136 .*137"):
        load("chat", profile=str(own), overrides=["online.rollout.max_tokens=41"])
    evaluation = ["evaluate.max_tokens=120"]
    own.write_text("engine: vllm\nvllm: {max_model_len: 140}\n")
    load("sft", profile=str(own), overrides=["evaluate.max_tokens=12", "data.evaluate.max_tokens=128"])
    with pytest.raises(
        RecipeError, match=r"data\.evaluate\.max_tokens: 128\).*evaluate\.max_tokens: 120.*248"
    ):
        load("sft", profile=str(own), overrides=[*evaluation, "data.evaluate.max_tokens=128"])


def test_passes_that_train_nothing_are_refused() -> None:
    with pytest.raises(RecipeError, match=r"sft\.fit\.epochs"):
        load("sft", overrides=["sft.fit.epochs=0"])
    with pytest.raises(RecipeError, match=r"reward\.fit\.epochs"):
        load("reward_model", overrides=["reward.fit.epochs=0"])
    with pytest.raises(RecipeError, match=r"reward\.members: "):
        load(
            "chat",
            overrides=[
                "reward.members=3",
                "online.annotate=[]",
                "online.select=[]",
                "online.prepare=[]",
                "online.fit.updates.policy=[{name: likelihood}]",
            ],
        )
    assert load("reward_model", overrides=["reward.fit.epochs=0", "reward.linear_probe=true"])


@pytest.mark.parametrize(
    "objectives",
    [
        "[{name: ranking.margin}]",
        "[{name: ranking.length_controlled}]",
        "[{name: ranking.bradley_terry, weight: 0.5}]",
        "[{name: ranking.bradley_terry}, {name: ranking.margin}]",
        "[{name: ranking.bradley_terry}, {name: ranking.bradley_terry, label: again}]",
    ],
)
def test_a_probe_alone_fits_plain_bradley_terry(objectives: str) -> None:
    """`chat` trains only a linear probe as reward model: options that the probe ignores are refused."""
    change = f"reward.fit.updates.reward_model={objectives}"
    with pytest.raises(RecipeError, match=r"reward\.fit\.updates.*reward\.fit\.epochs"):
        load("chat", overrides=[change])
    for trained in (["reward.fit.epochs=1"], ["reward.fit.epochs=1", "reward.linear_probe=false"]):
        assert load("chat", overrides=[change, *trained])
    assert load(
        "chat", overrides=["reward.fit.updates.reward_model=[{name: ranking.bradley_terry, label: fit}]"]
    )


def test_gold_health_rules_need_online_watch_gold() -> None:
    assert {"gold", "encoder"} <= set(plan(*load("chat"))["annotate_1"].inputs)
    blind = ["online.watch.gold=false", "online.health={reward_without_gold: null, gold_drop: null}"]
    stages = plan(*load("chat", overrides=blind))
    assert not {"gold", "encoder"} & set(stages["annotate_1"].inputs) and "gold" in stages["evaluate"].inputs
    with pytest.raises(RecipeError, match=r"online\.health\.reward_without_gold.*online\.watch\.gold"):
        load("chat", overrides=blind[:1])


def test_changing_the_number_of_rounds_keeps_existing_rounds() -> None:
    shorter, longer = (plan(*load("chat", overrides=[f"online.rounds={n}"])) for n in (2, 3))
    both = {name for name, stage in shorter.items() if name in longer and longer[name].key == stage.key}
    assert (
        set(shorter) - both == {"answers_policy", "evaluate"} and longer["rollout_1"].options["rounds"] == 3
    )
    other = plan(*load("chat", overrides=["online.rounds=2", "online.prompts_per_round=32"]))
    assert other["rollout_1"].key != shorter["rollout_1"].key


def test_changing_a_source_clears_the_inherited_hash_format_and_shape():
    """They belong to the base's model: the hash would reject any other model, and `format: tiny` would
    generate one.
    """
    model = load("chat", overrides=["models.policy.source=hub:org/mine"])[0].models["policy"]
    assert (model.sha256, model.format, model.shape) == (None, "auto", None)
    assert (
        load("chat", overrides=["models.policy.format=gguf", "models.policy.source=hub:org/mine"])[0]
        .models["policy"]
        .format
        == "gguf"
    )
    same = load("chat")[0].models["policy"]
    assert (
        same.sha256
        and load("chat", overrides=[f"models.policy.source={same.source}"])[0].models["policy"] == same
    )


@pytest.mark.parametrize(
    ("change", "new"),
    [
        ("online.fit.updates={policy: [{name: preference.dpo, times: x}]}", "weight_column"),
        ("reward.fit.updates.judge=[{name: ranking.bradley_terry}]", "reward_model"),
        ("online.annotate=[{name: rewards.reward_model, model: judge}]", "reward_model"),
        ("online.reference={name: ema, follow: 0.5}", "decay"),
        ("judge={}", "reward"),
        ("register.gates.distinct_2={under: 0.5}", "below"),
        ("register.gates.distinct_2={above: 0.5}", "over"),
        ("reward.certificate.min_contrast_accuracy=0.6", "min_accuracy_by_kind"),
    ],
)
def test_the_error_for_an_old_name_has_the_new_one(change: str, new: str) -> None:
    with pytest.raises(RecipeError, match=f"was renamed to {new}"):
        load("online_dpo", overrides=[change])


def test_the_error_for_an_old_key_of_a_profile_has_the_new_one(tmp_path: Path) -> None:
    (tmp_path / "old.yaml").write_text("sampler_rows: 8\n")
    with pytest.raises(RecipeError, match="was renamed to max_num_seqs"):
        load_profile(str(tmp_path / "old.yaml"))
