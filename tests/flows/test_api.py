"""The public Python API: names, reading a run's directory, errors, the documented example."""

from __future__ import annotations

import contextlib
import errno
import inspect
import json
import os
import subprocess
import sys
import traceback
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ratchet
from ratchet.components.data.groups import write_groups
from ratchet.components.errors import DataError, RecipeError, ServiceError, StageError
from ratchet.components.recipes.recipe import dump, load
from ratchet.components.storage.run_directory import RunDirectory
from ratchet.components.storage.store import Store
from ratchet.components.types import Group, Prompt, Trajectory
from ratchet.flows.cli import app

ROOT = Path(__file__).resolve().parents[2]
GROUPS = [
    Group(
        Prompt(
            "a",
            ({"role": "system", "content": "Be brief."}, {"role": "user", "content": "2 + 2?"}),
            answer="4",
        ),
        (
            Trajectory(
                ({"role": "assistant", "content": "4"},),
                {"tokens": [7, 8, 9]},
                [False, False, True],
                [0.0, 0.0, -0.5],
            ),
            Trajectory(({"role": "assistant", "content": "5"},), stop="length"),
        ),
        {"reward.right": [1.0, 0.0]},
    ),
    Group(
        Prompt("b", ({"role": "user", "content": "1 + 1?"},)),
        (Trajectory(({"role": "assistant", "content": "2"},)),),
        {"reward.right": [None]},
    ),
]
RESULTS = {
    "metrics": {"final.length": 3.0, "gain.mean": 0.2, "gain.low": 0.1, "gain.high": 0.3, "lone.low": 5.0},
    "per_prompt": {"final.gold": [0.5, 0.25]},
    "verdict": {"gates": {"better": False}, "reasons": ["better, 0.1 is below 0.2"], "passed": False},
}


@pytest.fixture
def run(tmp_path: Path) -> ratchet.Run:
    """A finished run, written by hand: an annotated round, two training steps, an evaluation; `reward` is
    planned and not made.
    """
    store, run_directory = Store(tmp_path), RunDirectory(tmp_path, "dpo-0123abcd")
    keys = {
        name: f"{number}" * 64
        for number, name in enumerate(("annotate_1", "optimise_1", "evaluate", "reward"))
    }

    def publish(name: str, kind: str, write: Callable[[Path], Any], **meta: Any) -> None:
        with store.working(name, keys[name]) as work:
            write(work.product)
            run_directory.link(name, store.publish(work, name, keys[name], kind, [], meta).path)

    publish(
        "annotate_1", "groups", lambda product: write_groups(product / "groups.parquet", GROUPS), seconds=1.5
    )
    lines = [
        {"step": 1, "time": 0.0, "metrics": {"policy/loss": 0.5}},
        {"step": 2, "time": 60.0, "metrics": {"policy/loss": 0.25, "x": 1.0}},
    ]
    publish(
        "optimise_1",
        "weights",
        lambda product: (product / "metrics.jsonl").write_text(
            "".join(json.dumps(line) + "\n" for line in lines)
        ),
    )
    publish("evaluate", "report", lambda product: (product / "results.json").write_text(json.dumps(RESULTS)))
    run_directory.open("recipe: {}\n")
    run_directory.record(recipe="dpo", state="finished", stages=keys, started=0.0)
    return ratchet.load_run("dpo-0123abcd", home=tmp_path)


def test_import_ratchet_imports_nothing_heavy() -> None:
    code = (
        "import sys, ratchet; names = dir(ratchet); ratchet.Run, ratchet.run, ratchet.load_recipe('sft', "
        "set={'seed': 1})\n"
        "print([m for m in ('torch', 'transformers', 'prefect', 'mlflow', 'pandas', 'numpy', 'pyarrow') "
        "if m in sys.modules])"
    )
    assert (
        subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True
        ).stdout.strip()
        == "[]"
    )


def test_every_public_name_is_documented_and_typed() -> None:
    public = [getattr(ratchet, name) for name in ratchet.__all__]
    members = [
        member
        for one in public
        if isinstance(one, type) and one is not ratchet.RatchetError
        for name, member in vars(one).items()
        if not name.startswith("_") and isinstance(member, (types.FunctionType, property))
    ]
    for one in [*public, *members]:
        assert inspect.getdoc(one), one
        function = one.fget if isinstance(one, property) else one
        if isinstance(function, types.FunctionType):
            written = inspect.signature(function)
            annotations = [str(p.annotation) for p in written.parameters.values() if p.name != "self"] + [
                str(written.return_annotation)
            ]
            assert "Any" not in " ".join(annotations) and str(inspect.Parameter.empty) not in annotations, (
                function
            )
    with pytest.raises(AttributeError, match="'load_recip'"):
        ratchet.load_recip  # noqa: B018


def test_load_recipe_takes_keys_as_a_mapping_or_as_on_the_command_line() -> None:
    by_mapping = ratchet.load_recipe(
        "dpo", set={"seed": 3, "evaluate": None, "offline.fit.learning_rate": 1e-6}, profile="test"
    )
    as_text = ratchet.load_recipe(
        "dpo", set=["seed=3", "evaluate=null", "offline.fit.learning_rate=1e-6"], profile="test"
    )
    assert str(by_mapping) == str(as_text) == dump(*load("dpo", overrides=as_text.overrides, profile="test"))
    assert (
        by_mapping.resolved.offline is not None
        and by_mapping.resolved.offline.fit.learning_rate == 1e-6
        and by_mapping.resolved.evaluate is None
    )


def test_set_takes_every_character() -> None:
    about = 'a 😀 in quotes " and \\'
    assert ratchet.load_recipe("dpo", set={"about": about}, profile="test").resolved.about == about


def test_check_names_a_file_that_is_not_there(tmp_path: Path) -> None:
    recipe = ratchet.load_recipe("dpo", set={"data.source": "path:/nowhere/pairs.jsonl"})
    with pytest.raises(ratchet.RatchetError, match=r"/nowhere/pairs\.jsonl"):
        recipe.check(home=tmp_path)


def test_runs_are_listed_with_their_state(run: ratchet.Run) -> None:
    assert (
        [one.path for one in ratchet.runs(run.home)] == [run.path] == [ratchet.load_run(home=run.home).path]
    )
    assert (run.name, run.state, run.error, run.log, run.report) == (
        "dpo-0123abcd",
        "finished",
        None,
        None,
        None,
    )
    assert repr(run) == "Run('dpo-0123abcd', finished, 1 of 1 gates failed)"
    stages = run.stages().set_index("stage")
    assert list(stages["made"]) == [True, True, True, False] and stages.loc["annotate_1", "seconds"] == 1.5
    assert stages.loc["evaluate", "path"] == run.stage("evaluate") and stages.loc["reward", "path"] is None


def test_results_have_a_row_a_metric_and_its_interval(run: ratchet.Run) -> None:
    found = run.results()
    assert dict(found.loc["gain"]) == {"value": 0.2, "low": 0.1, "high": 0.3}
    assert found.loc["final.length", "value"] == 3.0 and np.isnan(found.loc["final.length", "low"])
    assert list(found.index) == ["final.length", "gain", "lone.low"], (
        "a name that ends in low has no interval without a mean"
    )
    assert run.per_prompt()["final.gold"].tolist() == [0.5, 0.25]


def test_metrics_have_a_row_a_step(run: ratchet.Run) -> None:
    found = run.metrics()
    assert found[["stage", "step", "policy/loss"]].values.tolist() == [
        ["optimise_1", 1, 0.5],
        ["optimise_1", 2, 0.25],
    ]
    assert np.isnan(found["x"][0]) and str(found["time"][1]) == "1970-01-01 00:01:00+00:00"
    assert list(run.metrics("optimise_1")["step"]) == [1, 2] and run.metrics("evaluate").empty


def test_groups_have_a_row_an_answer(run: ratchet.Run) -> None:
    found = run.groups("annotate_1")
    assert found.fillna({"reference": "none"})[
        ["group", "index", "prompt_id", "prompt", "text", "stop", "reference"]
    ].values.tolist() == [
        [0, 0, "a", "2 + 2?", "4", "end", "4"],
        [0, 1, "a", "2 + 2?", "5", "length", "4"],
        [1, 0, "b", "1 + 1?", "2", "end", "none"],
    ]
    assert found["messages"][0] == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "2 + 2?"},
        {"role": "assistant", "content": "4"},
    ]
    assert (found["tokens"][0], found["mask"][0], found["logprobs"][0]) == (
        [7, 8, 9],
        [False, False, True],
        [0.0, 0.0, -0.5],
    )
    assert (
        found["mask"][1] is None
        and found["reward.right"][:2].tolist() == [1.0, 0.0]
        and np.isnan(found["reward.right"][2])
    )


@pytest.mark.parametrize(
    ("ask", "message"),
    [
        (
            lambda run: run.groups("annotate_2"),
            "run dpo-0123abcd has no stage 'annotate_2'; did you mean 'annotate_1'?",
        ),
        (lambda run: run.groups("reward"), "run dpo-0123abcd has not finished stage 'reward' yet"),
        (
            lambda run: run.groups("evaluate"),
            "stage 'evaluate' of run dpo-0123abcd wrote no prompts and answers",
        ),
        (
            lambda run: run.groups("annotate_1", "sft"),
            "stage 'annotate_1' of run dpo-0123abcd wrote no 'sft'; expected one of groups as `file`",
        ),
        (lambda run: run.model("annotate_1"), "config.json"),
        (lambda run: run.reward_model("annotate_1"), "config.json"),
        (lambda run: ratchet.load_run("dpp", home=run.home), "no run 'dpp'"),
        (lambda run: ratchet.Run(run.home), "is no run"),
    ],
)
def test_missing_names_are_one_sentence(
    run: ratchet.Run, ask: Callable[[ratchet.Run], object], message: str
) -> None:
    with pytest.raises(RecipeError) as refused:
        ask(run)
    assert message in str(refused.value) and "\n" not in str(refused.value)


def test_reward_model_scores_as_transformers_does(tiny_model: Path, tmp_path: Path) -> None:
    import torch
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    from ratchet.components.models.load import load_tokenizer, new_reward, save_model

    save_model(new_reward(tiny_model, seed=1), load_tokenizer(tiny_model), tmp_path / "reward")
    reward, tokenizer = (
        ratchet.RewardModel(tmp_path / "reward"),
        AutoTokenizer.from_pretrained(tmp_path / "reward"),
    )
    module = AutoModelForSequenceClassification.from_pretrained(tmp_path / "reward").eval()
    prompts: list[Any] = ["What does a dog do?", [{"role": "user", "content": "Hello."}], "Why?"]
    expected = []
    for prompt, answer in zip(prompts[:2], ("A dog barks.", "Hello!"), strict=True):
        messages = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt
        tokens = tokenizer.apply_chat_template(
            [*messages, {"role": "assistant", "content": answer}], return_tensors="pt", return_dict=True
        )["input_ids"]
        end = (
            (tokens[0] == tokenizer.eos_token_id).nonzero()[-1].item()
        )  # the answer's end of turn; templates may write a newline behind it
        with torch.no_grad():
            expected.append(module(input_ids=tokens[:, : end + 1]).logits.item())
    found = reward.score(prompts, ["A dog barks.", "Hello!", " "])
    assert found[:2] == pytest.approx(expected, abs=1e-4) and np.isnan(found[2]) and found.dtype == float
    with pytest.raises(DataError, match=r"3 prompts.*1 answer"):
        reward.score(prompts, ["one"])


def failing(error: Exception) -> Callable[..., dict[str, Any]]:
    """A flow that fails as Prefect's do: below frames and a cause that are not ours."""

    def engine() -> None:
        try:
            raise KeyError("of the engine")
        except KeyError as inner:
            raise error from inner

    def flow(*_: Any, **__: Any) -> dict[str, Any]:
        engine()
        return {}

    return flow


@pytest.mark.parametrize(
    ("error", "kind", "message"),
    [
        (
            StageError("stage 'sft' was killed by SIGKILL; the machine probably ran out of memory"),
            StageError,
            "stage 'sft' was killed by SIGKILL",
        ),
        (
            OSError(errno.ENOSPC, "No space left on device", "/out/store"),
            ServiceError,
            "No space left on device: /out/store; finished work is kept",
        ),
    ],
)
def test_failed_run_raises_without_prefect_frames(
    error: Exception, kind: type[Exception], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import importlib

    monkeypatch.setattr("ratchet.flows.startup.servers", lambda **_: contextlib.nullcontext())
    monkeypatch.setattr("ratchet.flows.startup.set_environment_defaults", lambda _: None)
    monkeypatch.setattr(
        importlib.import_module("ratchet.flows.post_training"), "post_training", failing(error)
    )
    with pytest.raises(kind) as raised:
        ratchet.run(ratchet.load_recipe("sft", profile="test"), home=tmp_path, progress=False)
    assert (
        str(raised.value).startswith(message)
        and raised.value.__cause__ is None
        and raised.value.__suppress_context__
    )
    shown = "".join(traceback.format_exception(raised.value))
    assert "in engine" not in shown and "of the engine" not in shown and shown.count("Traceback") == 1


def test_python_api_and_command_line_agree(tmp_path: Path) -> None:
    from typer.testing import CliRunner

    with pytest.raises(RecipeError) as raised:
        ratchet.load_recipe("online_dpo", set={"online.rouns": 2})
    done = CliRunner().invoke(app, ["recipes", "check", "online_dpo", "--set", "online.rouns=2"])
    assert str(done.exception) == str(raised.value)


def test_documented_example_runs(fresh_home: Callable[[str], Path]) -> None:
    """As a notebook runs it, top to bottom, in one process; with a second run in the same process that fails
    inside Prefect.
    """
    home = fresh_home("out")
    script = home.parent / "notebook.py"
    script.write_text(
        (ROOT / "docs" / "examples" / "python_api.py").read_text()
        + """
# %%
assert results.loc["final.length", "value"] > 0 and len(answers) == 48 and len(metrics) == 2
assert ratchet.run(recipe, home="out", until="evaluate", progress=False).path == run.path
ratchet.run(ratchet.load_recipe("sft", profile="test", set={"data.sft.max_tokens": 1}), home="out", progress=False)
"""  # noqa: E501
    )
    env = {
        k: v
        for k, v in os.environ.items()
        if not k.startswith(("PREFECT_API", "PREFECT_LOGGING", "MLFLOW_TRACKING"))
    }
    done = subprocess.run([sys.executable, script], cwd=home.parent, env=env, capture_output=True, text=True)
    assert (
        "unknown key 'learning_rat'; did you mean 'learning_rate'?" in done.stdout
        and "evaluate: done" in done.stdout
        and "NaN" not in done.stdout
    ), done.stdout + done.stderr
    last = done.stderr[done.stderr.index("Traceback") :]
    assert done.returncode == 1 and "prefect" not in last and last.count("Traceback") == 1, last
    failed = ratchet.load_run(home=home)
    assert (
        failed.state == "failed"
        and failed.error is not None
        and last.strip().endswith(failed.error.partition(": ")[2])
    ), last
