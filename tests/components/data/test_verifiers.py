"""Verification of the data's own reference answers before training."""

import pytest

from ratchet.components.data.verifiers import check_gold, verifiers
from ratchet.components.errors import GateError
from ratchet.components.recipes.plan import plan
from ratchet.components.recipes.recipe import load
from ratchet.components.types import Group, Prompt, Trajectory

EXACT = {"name": "rewards.exact_answer"}


def prompts(*answers):
    return [
        Group(Prompt(f"p{i}", ({"role": "user", "content": f"question {i}"},), answer), ())
        for i, answer in enumerate(answers)
    ]


def test_right_answers_pass_and_so_do_prompts_without_one():
    assert check_gold(prompts("72", "1,000", "\\boxed{3}", None), [EXACT]) == {"rewards.exact_answer": [3, 3]}
    assert check_gold(prompts(None), [EXACT]) == {}
    assert check_gold(prompts("72"), []) == {}


def test_verifier_that_rejects_reference_answers_stops_the_run_with_examples():
    worked = [f"She sold {n}/2 clips.\n#### {n}" for n in range(4)]
    with pytest.raises(GateError) as found:
        check_gold([*prompts(*map(str, range(16))), *prompts(*worked)], [EXACT])
    message = str(found.value)
    assert (
        "rewards.exact_answer gives the data's own answer full reward for 16 of 20 prompts (80.0%), "
        "expected at least 95.0%" in message
    )
    assert (
        message.count("question") == 3
        and "question 0" in message
        and "#### 0" in message
        and "#### 3" not in message
    )


def test_verifier_may_reject_five_percent_of_reference_answers():
    assert check_gold(prompts(*map(str, range(19)), "no number 7 here"), [EXACT]) == {
        "rewards.exact_answer": [19, 20]
    }


def test_only_verifiers_are_run_on_reference_answers():
    recipe, profile = load("rlvr_grpo")
    assert [spec["name"] for spec in verifiers(recipe)] == ["rewards.exact_answer"]
    stages = plan(recipe, profile)
    assert stages["drafts"].options["verifiers"] == [{"name": "rewards.exact_answer"}]
    assert not verifiers(load("dpo")[0]) and "verifiers" not in plan(*load("dpo"))["drafts"].options


def test_verifiers_in_the_options_of_other_pieces_are_run_on_reference_answers():
    """The environment `retry` compares attempts, and `rewards.length.cosine` answers, by a verifier."""
    for name in ("score", "try_again"):
        assert verifiers(load(name)[0]) == [EXACT]
        assert plan(*load(name))["drafts"].options["verifiers"] == [EXACT]
    centred = "{name: advantages.centre, reward: reward.cosine}"
    for option, name in (("", "exact_answer"), (", verifier: rewards.math_verify", "math_verify")):
        cosine = f"online.annotate=[{{name: rewards.length.cosine{option}}}, {centred}]"
        recipe, _ = load("rloo", overrides=[cosine, "evaluate.metrics=[]", "claim=null"])
        assert [spec["name"] for spec in verifiers(recipe)] == [f"rewards.{name}"]


def test_verifier_of_an_environment_that_the_evaluation_names_is_run_on_reference_answers():
    rollout = "evaluate.rollout={name: episodes, environment: retry, max_length: 64}"
    assert verifiers(load("sft_gsm8k", overrides=[rollout, "evaluate.metrics=[]", "register=null"])[0]) == [
        EXACT
    ]


def test_verifier_that_fails_on_reference_answers_is_an_error():
    group = Group(Prompt("p", ({"role": "user", "content": "q"},), "5"), (Trajectory(()),))
    with pytest.raises(GateError, match=r"'p'.*`source_dataset`"):
        check_gold([group], [{"name": "rewards.reasoning_gym"}])


def test_the_stage_of_curation_stops_for_a_verifier_that_is_never_right(monkeypatch, tmp_path):
    import json
    from types import SimpleNamespace

    from ratchet.components.stages import curate as stage

    monkeypatch.setattr(stage, "load_tokenizer", lambda path: None)
    monkeypatch.setattr(
        stage, "count_tokens", lambda tokenizer, messages: sum(len(m["content"].split()) for m in messages)
    )

    def run(name, answer):
        (tmp_path / name).mkdir()
        (tmp_path / name / "source.jsonl").write_text(
            "".join(
                json.dumps({"question": f"How many are {n} and {n}?", "answer": answer.format(2 * n)}) + "\n"
                for n in range(40)
            )
        )
        section = {
            "source": "path:mine.jsonl",
            "seed": 0,
            "splits": {"prompts": 0.5, "evaluate": 0.5},
            "near_threshold": None,
        }
        return stage.curate(
            SimpleNamespace(
                path=lambda part: tmp_path / name,
                options={"section": section, "verifiers": [EXACT]},
                work=SimpleNamespace(product=tmp_path / name / "out"),
            )
        )

    assert run("gsm8k", "They are <<1+1>>{}.\n#### {}".replace("{}.", "two."))["gold"] == {
        "rewards.exact_answer": [40, 40]
    }
    with pytest.raises(GateError, match="0 of 40"):
        run("prose", "They are {} altogether.")
