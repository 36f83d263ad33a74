"""Commands on a hand-filled store: output, errors, exit codes."""

from __future__ import annotations

import importlib
import json
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from ratchet.components.errors import BusyError, ContractError, RecipeError
from ratchet.components.recipes.recipe import load
from ratchet.flows.cli import app
from ratchet.flows.compare import compare, metric_of
from ratchet.flows.display import Display, open_console
from ratchet.tasks.machine import checks, doctor
from ratchet.tasks.registry import lineage
from ratchet.tasks.tracking import reproduce


def ratchet(*arguments: str, code: int = 0) -> str:
    done = CliRunner().invoke(app, list(arguments))
    if done.exception and not isinstance(done.exception, SystemExit):
        raise done.exception
    assert done.exit_code == code, done.output
    return done.output


@pytest.fixture
def home(publish, run_of, tmp_path, monkeypatch) -> Path:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    base, data = publish("model_policy"), publish("curated", kind="data")
    for name, score in (("one", 1.0), ("two", 2.0)):
        sft = publish("sft", {"policy": base, "data": data}, text=name, steps=3)
        results = {
            "metrics": {"kl": score},
            "per_prompt": {"final.gold_like": [score, score + 1]},
            "lengths": {"final": [4, 5]},
        }
        report = publish("evaluate", {"policy": sft, "data": data}, kind="report", results=results)
        run_of(name, model_policy=base, curated=data, sft=sft, evaluate=report)
    return tmp_path


def test_sync_leaves_out_a_run_that_uploads_itself(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def upload(run: Path, home: Path) -> int:
        if run.name == "one":
            raise BusyError("in use")
        return 7

    monkeypatch.setattr("ratchet.tasks.tracking.upload.sync", upload)
    output = ratchet("sync", "--home", str(home))
    assert "one: another process uploads it now" in output and "two: 7 metric values uploaded" in output


def test_lineage_prints_a_tree_and_draws(home: Path) -> None:
    output = ratchet("lineage", str(home / "runs" / "one" / "stages" / "sft"), "--home", str(home))
    assert (
        "recipe     fake" in output
        and "code       abc" in output
        and "torch 2" in output
        and "kl 1" in output
    )
    assert (
        "├── model_policy as policy weights" in output
        and "└── curated data" in output
        and "3 steps" in output
    )
    assert (home / "runs" / "one" / "lineage" / "sft.svg").read_text().startswith("<svg")


def test_lineage_folds_long_lines(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run has some 20 packages, 350 characters."""
    resolve, packages = lineage.resolve, {f"package-{i}": f"{i}.0.1" for i in range(30)}
    monkeypatch.setattr(
        lineage,
        "resolve",
        lambda model, home: ({**(found := resolve(model, home))[0], "packages": packages}, found[1]),
    )
    said = ratchet("lineage", str(home / "runs" / "one" / "stages" / "sft"), "--home", str(home))
    lines = said.partition("packages   ")[2].partition("\nsft")[0].splitlines()
    assert (
        len(lines) > 3
        and max(map(len, lines)) <= 120
        and all(line.startswith(" " * 11) for line in lines[1:4])
    )


def test_reproduce_needs_a_recipe(home: Path) -> None:
    with pytest.raises(RecipeError, match="resolved recipe"):
        ratchet("reproduce", str(home / "runs" / "one" / "stages" / "sft"), "--home", str(home))


@pytest.mark.parametrize("state", ["identical", "differs"])
def test_reproduce_fails_where_a_stage_differs(
    home: Path, state: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = [
        reproduce.Outcome("raw", "data", "brought", "aa", "aa"),
        reproduce.Outcome("sft", "weights", state, "bb", "cc", ("model.safetensors",)),
    ]
    monkeypatch.setattr(reproduce, "reproduce", lambda lineage, into, **_: (into.mkdir(), iter(found))[1])
    monkeypatch.setattr(reproduce, "surroundings", lambda lineage: ["code: abc then, def now"])
    done = CliRunner().invoke(
        app, ["reproduce", str(home / "runs" / "one" / "stages" / "sft"), "--home", str(home)]
    )
    assert done.exit_code == (state == "differs") and "differs  code: abc then, def now" in done.stdout
    assert ("Identical: sft was reproduced" in done.stdout) == (state == "identical")
    assert ("Files: model.safetensors" in done.stdout) == (state == "differs")


@pytest.mark.parametrize(
    "command",
    [
        "show",
        "runs",
        "compare",
        "claims",
        "lineage",
        "doctor",
        "plan",
        "recipes list",
        "recipes explain",
        "recipes check",
    ],
)
def test_reading_commands_have_json(command: str) -> None:
    found: Any = typer.main.get_command(app)
    for word in command.split():
        found = found.commands[word]
    assert any("--json" in option.opts for option in found.params)


def test_gc_shows_first_and_removes_on_yes(home: Path) -> None:
    assert "Would free 0 bytes in 0 directories." in ratchet("gc", "--home", str(home))
    only = ("gc", "--home", str(home), "--keep-days", "0", "--keep-last", "1")
    output = ratchet(*only)
    assert (
        "would go" in output
        and "store/sft-" in output
        and "in 2 directories. Add --yes" in output
        and "stays: 4 products" in output
    )
    assert len(list((home / "store").glob("sft-*"))) == 2
    assert "Freed" in ratchet(*only, "--yes") and len(list((home / "store").glob("sft-*"))) == 1


ASKED = {"transcripts": [{"prompt": [{"role": "user", "content": "A question?"}]}]}


def test_compare_two_runs(home: Path) -> None:
    output = ratchet("compare", "one", "two", "--home", str(home))
    assert (
        "recipe: no difference" in output and "source code" in output and "+1 [+1, +1], 2 prompts" in output
    )
    with pytest.raises(RecipeError, match="'three'"):
        ratchet("compare", "one", "three", "--home", str(home))
    with pytest.raises(RecipeError, match=r"'one'.*3"):
        ratchet("compare", "one", "two", "chat", "--home", str(home))
    with pytest.raises(RecipeError, match=r"'chatt'.*'chat'"):
        ratchet("compare", "chatt", "chat_offline", "--home", str(home))


def test_compare_rejects_invalid_arguments_before_running(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "ratchet.flows.commands.compare.servers", lambda: pytest.fail("something was started")
    )
    with pytest.raises(RecipeError, match="reward_model"):
        ratchet("compare", "sft", "reward_model", "--home", str(tmp_path))
    with pytest.raises(RecipeError, match="dpo is named twice"):
        ratchet("compare", "dpo", "sft", "dpo", "--home", str(tmp_path))
    with pytest.raises(RecipeError, match=r"--metric: dpo .*'win_rate'"):
        ratchet("compare", "dpo", "kto", "--metric", "win_rate", "--home", str(tmp_path))
    (tmp_path / "results.json").write_text(json.dumps({"per_prompt": {"final.gold": [0.5, 0.25]}, **ASKED}))
    pipeline = SimpleNamespace(artifact=lambda _: SimpleNamespace(path=tmp_path))
    monkeypatch.setattr("ratchet.flows.compare.Pipeline", SimpleNamespace(open=lambda *_, **__: pipeline))
    monkeypatch.setattr(
        importlib.import_module("ratchet.flows.post_training"), "post_training", lambda *_, **__: None
    )
    found = compare(["chat"], "final.gold", [0], tmp_path, Display(open_console(quiet=True)))
    assert found["arms"]["chat"]["by_seed"] == [0.375]
    with pytest.raises(RecipeError, match=r"--metric: .*'win_rat'.*'win_rate'"):
        metric_of({"chat": load("chat")[0]}, "win_rat")


@pytest.mark.parametrize(
    ("recipes", "metric"),
    [
        (["instruct", "instruct_dpo"], "final.reward.instructions"),
        (["chat", "chat_offline"], "win_rate"),
        (["sentiment_rloo", "sentiment_initial"], "final.ead"),
        (["sentiment_dpo", "sentiment_preferred"], "final.reward.sentiment"),
    ],
)
def test_compare_reads_the_claims_metric_or_the_first(recipes: list[str], metric: str) -> None:
    assert metric_of({name: load(name)[0] for name in recipes}, None) == metric


def test_compare_pairs_recipes_by_seed_and_prompt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Differences 0.45 and 0.5 of two prompts, equal for all seeds: standard error 0.025 with one degree of
    freedom, t = 12.706.
    """
    wins, asked = {"chat": [0.95, 1.0], "chat_offline": [0.5, 0.5]}, {"chat": ASKED, "chat_offline": ASKED}

    def opened(recipe: str, **_: Any) -> SimpleNamespace:
        (tmp_path / recipe).mkdir(exist_ok=True)
        (tmp_path / recipe / "results.json").write_text(
            json.dumps({"per_prompt": {"win_rate": wins[recipe]}, **asked[recipe]})
        )
        return SimpleNamespace(artifact=lambda _: SimpleNamespace(path=tmp_path / recipe))

    monkeypatch.setattr("ratchet.flows.compare.Pipeline", SimpleNamespace(open=opened))
    monkeypatch.setattr(
        importlib.import_module("ratchet.flows.post_training"), "post_training", lambda *_, **__: None
    )
    display = Display(open_console(quiet=True))
    found = compare(["chat", "chat_offline"], "win_rate", range(3), tmp_path, display)
    assert found["metric"] == "win_rate" and found["arms"]["chat_offline"]["by_seed"] == [0.5, 0.5, 0.5]
    expected = {"mean": 0.475, "low": 0.475 - 12.706 * 0.025, "high": 0.475 + 12.706 * 0.025}
    assert found["differences"] == {"chat - chat_offline": pytest.approx(expected, abs=1e-4)}
    assert (tmp_path / "comparisons" / "chat-vs-chat_offline.json").is_file()
    asked["chat_offline"] = {"transcripts": [{"prompt": [{"role": "user", "content": "Another question?"}]}]}
    with pytest.raises(RecipeError, match="different prompts with seed 0"):
        compare(["chat", "chat_offline"], "win_rate", range(3), tmp_path, display)


def test_invalid_until_is_an_error() -> None:
    assert "'trian' is not one of" in ratchet("run", "sft", "--until", "trian", code=2)


def test_doctor_exit_code_follows_its_findings(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for state, code in (("warn", 0), ("fail", 1)):
        monkeypatch.setattr(
            doctor,
            "examine",
            lambda *_, state=state: [checks.Finding(state, "little [x]", "clear it", "disk")],
        )
        assert f"{state}  disk          little [x] → clear it" in ratchet("doctor", code=code)


def test_a_promotion_needs_its_reason(home: Path) -> None:
    assert "--reason" in ratchet("promote", "policy", "--version", "1", code=2)
    with pytest.raises(ContractError, match="reason"):
        ratchet("promote", "policy", "--version", "1", "--reason", " ", "--home", str(home))
    with pytest.raises(ContractError, match="reason"):
        ratchet("rollback", "policy", "--reason", "", "--home", str(home))


def test_an_estimate_measures_this_machine_once(fresh_home, monkeypatch: pytest.MonkeyPatch) -> None:
    from ratchet.tasks.machine import calibration

    home = fresh_home("estimated")
    ask = ("plan", "online_dpo", "--estimate", "--profile", "test", "--home", str(home))
    output = ratchet(*ask)
    assert (
        "million parameters" in output
        and re.search(
            r"sampled tokens a second, [\d,]+ ms an update \(full\), measured on this machine", output
        )
        and "rollout_1" in output
    )
    assert "cost       unknown: the profile states no hardware.price_per_hour" in output
    monkeypatch.setattr(calibration, "_measured", lambda ask: pytest.fail("measured again"))
    assert ratchet(*ask) == output, "the same machine, other numbers"


def test_a_profile_of_this_machine_is_measured_and_each_stage_priced(
    fresh_home, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A profile with stated hardware figures: measured rates if this machine matches it, otherwise computed
    from the figures, and labelled so.
    """
    import dataclasses

    import yaml

    from ratchet.components.estimates.cost import START_SECONDS
    from ratchet.components.recipes.plain_values import plain
    from ratchet.components.recipes.recipe import load_profile
    from ratchet.tasks.machine import calibration
    from ratchet.tasks.machine.provenance import machine

    home = fresh_home("priced")
    rates = {"learn": {"full": 100.0}, "update": {"full": 0.5}, "score": 200.0, "sample": 20.0, "load": 3.0}
    monkeypatch.setattr(calibration, "_measured", lambda ask: rates)
    stated = {
        "tflops": 1.0,
        "bandwidth_gb": 10.0,
        "memory_gb": 4.0,
        "price_per_hour": 36.0,
        "currency": "CHF",
    }

    def estimate(device: str) -> list[list[str]]:
        file = home / "mine.yaml"
        file.write_text(
            yaml.safe_dump(
                {
                    **plain(dataclasses.replace(load_profile("test"), name="mine")),
                    "hardware": {**stated, "device": device},
                }
            )
        )
        return [
            line.split()
            for line in ratchet(
                "plan", "raft", "--estimate", "--profile", str(file), "--home", str(home)
            ).splitlines()
        ]

    here = estimate(machine())
    assert " ".join(here[-1]).endswith(
        "20 sampled tokens a second, 500 ms an update (full), measured on this machine"
    )
    assert next(line for line in here if line[0] == "stage")[-3:] == ["time", "CHF", "largest"]
    rollout, model = (
        next(line for line in here if line[0] == name) for name in ("rollout_1", "model_policy")
    )
    seconds = (
        12 * 4 * 24 / 20 + 12 * 256 / 200 + 3.0 + START_SECONDS
    )  # longest answers sampled, prompts of at most 256 tokens read, one model loaded
    assert f"{seconds / 3600 * 36:.2f}" in rollout and model[-1] == "done", "what is finished costs no more"
    other = " ".join(estimate("H100 80GB")[-1])
    assert other.endswith(
        "computed from the profile's figures for H100 80GB, not measured (the profile states 1 × H100 80GB, "
        "and this machine has 0)"
    )


@pytest.mark.parametrize(
    ("stated", "ranks", "why"),
    [
        ({"device": "H100 80GB", "devices": 2}, 1, ""),
        (
            {"device": "H100 80GB", "devices": 3},
            1,
            "the profile states 3 × H100 80GB, and this machine has 2",
        ),
        ({"device": "H100 80GB"}, 2, "the profile has 2 ranks, and one process is measured"),
        ({"device": "H10"}, 1, "the profile states 1 × H10, and this machine has 0"),
        ({}, 1, ""),
    ],
)
def test_measured_rates_apply_if_the_machine_matches_the_profile(stated: dict, ranks: int, why: str) -> None:
    from ratchet.components.recipes.profile import Hardware, Profile
    from ratchet.tasks.machine.calibration import why_not_measured

    here = ["Linux x86_64 Intel(R) Xeon(R) Platinum 8481C", "NVIDIA H100 80GB HBM3", "NVIDIA H100 80GB HBM3"]
    assert (
        why_not_measured(Profile(learner="deepspeed", ranks=ranks, hardware=Hardware(**stated)), here) == why
    )


def test_plan_fails_if_memory_does_not_suffice(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match=r"profile 'gpu'.*'sft'"):
        ratchet("plan", "rlhf_workflow_8b", "--profile", "gpu")
    assert "0 of 24 stages" in ratchet("plan", "rlhf_workflow_8b", "--home", str(tmp_path))
