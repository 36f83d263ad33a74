"""The registry on sqlite and on a real `mlflow server`, which reject different requests."""

import json
import os
import socket
import subprocess
import sys
from dataclasses import replace
from types import SimpleNamespace

import pytest

from ratchet.components.errors import ContractError, ServiceError, StoreError
from ratchet.components.recipes.plan import Stage
from ratchet.components.recipes.recipe import load
from ratchet.components.recipes.schema_evaluation import Register
from ratchet.components.types import Artifact
from ratchet.flows.ui import free_port, wait_for
from ratchet.tasks.registry.registry import promote, register
from ratchet.tasks.registry.registry_sources import bring
from ratchet.tasks.registry.versions import champion, events, history, saved_lineage
from ratchet.tasks.tracking.server import client, experiment_id

LINEAGE = {"recipe": "chat", "revision": "abc", "data": {"pairs": "d1"}, "parents": ["sft"]}


@pytest.fixture(scope="session")
def home(tmp_path_factory):
    return tmp_path_factory.mktemp("registry")


@pytest.fixture(scope="session")
def server(tmp_path_factory):
    folder, port = tmp_path_factory.mktemp("server"), free_port()
    with open(folder / "log", "w") as out:
        process = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "mlflow",
                "server",
                "--host",
                "127.0.0.1",
                "--port",
                str(port),
                "--workers",
                "1",
                "--backend-store-uri",
                f"sqlite:///{folder}/mlflow.db",
                "--artifacts-destination",
                str(folder / "artifacts"),
            ],
            env={
                **os.environ,
                "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
                "MLFLOW_DISABLE_TELEMETRY": "true",
            },
            cwd=folder,
            stdout=out,
            stderr=out,
            start_new_session=True,
        )
    try:
        wait_for(f"http://127.0.0.1:{port}/health", process, folder / "log", 300)
        yield f"http://127.0.0.1:{port}"
    finally:
        os.killpg(process.pid, 15)
        process.wait(100)


def model(folder, text):
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    (folder / "model.safetensors").write_text(text)
    return folder


def walk(tmp_path, home):
    """The life of three checkpoints; the same on any backend."""
    name = f"policy-{tmp_path.name}"
    one, two = model(tmp_path / "one", "1"), model(tmp_path / "two", "2")
    mlflow = client(home)
    run = mlflow.create_run(experiment_id(mlflow, home)).info.run_id
    middle = register(one, name, lineage=LINEAGE, metrics={}, run_id=run, external=True, home=home)
    assert register(one, name, lineage=LINEAGE, run_id=run, external=True, home=home) == middle
    final = register(one, name, lineage=LINEAGE, metrics={"win_rate": 0.6}, run_id=run, home=home)
    assert final != middle and register(one, name, lineage=LINEAGE, external=True, home=home) == middle
    assert register(one, name, lineage=LINEAGE, run_id=run, home=home) == final
    second = mlflow.create_run(
        experiment_id(mlflow, home)
    ).info.run_id  # made the same weights of the same data: its page says so, once
    for _ in range(2):
        assert (
            register(one, name, lineage=LINEAGE, metrics={"win_rate": 0.6}, run_id=second, home=home) == final
        )
    assert [m.value for m in mlflow.get_metric_history(second, "win_rate")] == [0.6]
    assert len(mlflow.get_run(second).outputs.model_outputs) == 1
    other = register(one, name, lineage={**LINEAGE, "data": {"pairs": "d2"}}, home=home)
    assert other not in (middle, final)  # the same weights from other data are another version

    assert champion(name, home=home) is None
    assert promote(name, final, {"passed": True, "reasons": ["win rate 0.60 > 0.50"]}, home=home)
    worse = register(two, name, lineage=LINEAGE, home=home)
    assert not promote(name, worse, {"passed": False, "reasons": ["tax 1.3 > 1.1"]}, home=home)
    best = champion(name, home=home)
    assert (
        best.version == final
        and best.tags["lineage.data.pairs"] == "d1"
        and best.tags["metric.win_rate"] == "0.6"
    )
    assert best.tags["verdict.why"] == "win rate 0.60 > 0.50" and best.tags["package.torch"]
    versions = {v.version: v for v in history(name, home=home)}
    assert versions[worse].aliases == ("candidate",) and versions[worse].tags["verdict"] == "refused"
    assert saved_lineage(versions[middle], home=home) == saved_lineage(versions[final], home=home) == LINEAGE
    assert versions[middle].external and not versions[final].external
    again = {**LINEAGE, "run": "second", "results": {"prompts": "p"}}  # evaluated again, by another measure
    numbers = {"gain": 0.2}
    for _ in range(2):
        assert register(one, name, lineage=again, metrics=numbers, run_id=second, home=home) == final
    changed = {v.version: v for v in history(name, home=home)}
    assert saved_lineage(changed[final], home=home) == again
    measured = {tag for tag in changed[final].tags if tag.startswith("metric.")}
    assert measured == {"metric.gain"} and changed[final].tags["lineage.run"] == "second"
    assert changed[final].aliases == versions[final].aliases and changed[middle] == versions[middle]
    assert register(one, name, lineage=LINEAGE, external=True, home=home) == middle
    register(one, name, lineage=LINEAGE, home=home)  # as a checkpoint of a run that evaluates another model
    assert saved_lineage(changed[final], home=home) == again
    assert promote(name, worse, {"passed": True, "reasons": ["a person said so"]}, home=home)
    after = {v.version: v for v in history(name, home=home)}
    assert events(after[final])[-1]["replaced_by"] == worse and events(after[worse])[-1]["replaced"] == final
    assert champion(name, home=home).version == worse
    with pytest.raises(StoreError, match="registry"):
        promote(name, middle, {"passed": True}, home=home)
    with pytest.raises(StoreError, match="99"):
        promote(name, "99", {"passed": True}, home=home)
    return mlflow, versions[final], versions[middle]


def test_registry_on_sqlite(tmp_path, home, monkeypatch):
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    mlflow, final, middle = walk(tmp_path, home)
    names = [a.path for a in mlflow.list_logged_model_artifacts(final.model_id)]
    assert sorted(names) == ["config.json", "lineage.json", "model.safetensors"]
    assert [a.path for a in mlflow.list_logged_model_artifacts(middle.model_id)] == [
        "MLmodel",
        "lineage.json",
    ]  # no bytes copied


@pytest.mark.slow
def test_registry_on_a_server(tmp_path, server, monkeypatch):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", server)
    _, final, _ = walk(tmp_path, tmp_path / "home")
    from mlflow.artifacts import download_artifacts

    got = download_artifacts(
        f"models:/{final.name}/{final.version}", tracking_uri=server, dst_path=str(tmp_path / "got")
    )
    assert (tmp_path / "got" / "model.safetensors").read_text() == "1", got
    (tmp_path / "one").rename(
        tmp_path / "gone"
    )  # what the version was made of: a recipe's `registry:` takes the server's copy
    bring(final, tmp_path / "progress" / "registered", tmp_path / "home")
    assert {file.name: file.read_text() for file in (tmp_path / "progress" / "registered").iterdir()} == {
        "config.json": "{}",
        "model.safetensors": "1",
    }


def test_unreachable_server_is_one_error(tmp_path, home, monkeypatch):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        monkeypatch.setenv("MLFLOW_TRACKING_URI", f"http://127.0.0.1:{free.getsockname()[1]}")
        with pytest.raises(ServiceError, match="nothing is lost"):
            register(model(tmp_path / "m", "1"), "policy", lineage=LINEAGE, home=home)
    with pytest.raises(StoreError, match="no files"):
        register(tmp_path / "empty", "policy", lineage={}, home=home)


def test_registration_is_postponed_until_the_run_is_uploaded(tmp_path):
    """Its versions would never be linked to it: the same command registers them later."""
    from ratchet.tasks.pipeline import Pipeline
    from ratchet.tasks.registry.registration import register_run

    assert "sqlite:" in register_run(Pipeline.open("sft", home=tmp_path, profile="test"), None)["postponed"]
    assert not (tmp_path / "registry.lock").exists() and not (tmp_path / "mlflow.db").exists()


def test_recipe_that_trains_nothing_registers_nothing(tmp_path):
    from ratchet.flows.running import finished
    from ratchet.tasks.pipeline import Pipeline
    from ratchet.tasks.registry.registration import register_run

    pipeline = Pipeline.open("sentiment_initial", home=tmp_path, profile="test")
    assert pipeline.recipe.register is not None and register_run(pipeline, "run") == {}
    pipeline.run.record(state="finished")
    pipeline.stages.clear()  # as if all were made
    assert finished(pipeline, "register")


def test_a_run_is_not_finished_before_it_is_registered_as_the_model_of_the_recipe(tmp_path):
    from ratchet.flows.running import finished
    from ratchet.tasks.pipeline import Pipeline

    def opened(name):
        overrides = ["evaluate=null", "claim=null", f"register={{model: {name}}}"]
        return Pipeline.open("sft", home=tmp_path, profile="test", overrides=overrides)

    first, other = opened("first"), opened("other")
    assert first.run.name == other.run.name
    for name, stage in first.stages.items():
        with first.store.working(name, stage.key) as work:
            (work.product / "file").write_text("")
            first.store.publish(work, name, stage.key, stage.kind, (), {})
    first.run.record(state="finished", versions={"sft": "1"}, registered={"sft": "first:1"})
    assert finished(first, "register") and not finished(other, "register") and finished(other, "train")
    first.run.record(registered={}, postponed="no server")
    assert not finished(first, "register")


def test_versions_have_metrics_and_parent_versions(tmp_path, monkeypatch):
    """Parents are the nearest checkpoints: the policy before a round, and the reward model that scored its
    pairs.
    """
    from ratchet.tasks.registry import registration

    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.setattr(registration, "write_lineage", lambda *_: LINEAGE)
    reads = {
        "curated": (),
        "model_policy": (),
        "sft": ("model_policy", "curated"),
        "reward": ("sft", "curated"),
        "gold": ("curated",),
        "rollout_1": ("sft",),
        "annotate_1": ("rollout_1", "reward", "gold"),
        "optimise_1": ("sft", "annotate_1"),
        "rollout_2": ("optimise_1",),
        "annotate_2": ("rollout_2", "reward", "gold"),
        "optimise_2": ("optimise_1", "annotate_2"),
    }
    weights = ("model_policy", "sft", "reward", "gold", "optimise_1", "optimise_2")
    stages = {
        name: Stage(
            name,
            name.split("_")[0],
            "weights" if name in weights else "data",
            {},
            {one: one for one in inputs},
        )
        for name, inputs in reads.items()
    }
    metas = {
        "sft": {"best_validation_loss": 3.5, "stopped_early": False, "probe": {"ended": 0.5}},
        "optimise_2": {"steps": 8, "probe": {"ended": 1.0}},
    }
    artifacts = {
        name: Artifact("weights", model(tmp_path / name, name), "", meta=metas.get(name, {}))
        for name in weights
    }
    line = SimpleNamespace(
        recipe=replace(load("sft")[0], register=Register("m")),
        stages=stages,
        artifact=artifacts.__getitem__,
        store=SimpleNamespace(home=tmp_path),
        run=SimpleNamespace(record=lambda **_: None),
    )
    mlflow = client(tmp_path)
    numbers = registration.register_run(line, mlflow.create_run(experiment_id(mlflow, tmp_path)).info.run_id)[
        "versions"
    ]
    assert numbers == {"sft": "1", "reward": "1", "optimise_1": "2", "optimise_2": "3"}
    tags = {v.version: v.tags for v in history("m", home=tmp_path)} | {
        "reward": history("m-reward", home=tmp_path)[0].tags
    }

    def tagged(version, prefix):
        return {
            key.removeprefix(prefix): value for key, value in tags[version].items() if key.startswith(prefix)
        }

    assert tagged("1", "metric.") == {"sft.best_validation_loss": "3.5", "sft.probe.ended": "0.5"}
    assert tagged("3", "metric.") == {"optimise.probe.ended": "1.0"} and tagged("1", "parent.") == {}
    assert tagged("reward", "parent.") == {"sft": "m:1"}
    assert tagged("2", "parent.") == {"sft": "m:1", "reward": "m-reward:1"}
    assert tagged("3", "parent.") == {"optimise_1": "m:2", "reward": "m-reward:1"}


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ("reward.certificate.min_accuracy=0.5", ""),
        ("reward.certificate.min_accuracy=null", "min_accuracy"),
        ("evaluate.arms={base: {model: base}, trained: {model: policy}}", ""),
        ("evaluate.arms={base: {model: base}, trained: {model: online}}", ""),
        ("evaluate.arms={trained: {model: policy}, base: {model: base}}", "evaluate.arms.base"),
    ],
)
def test_a_policy_without_evidence_of_its_own_does_not_become_champion(change, why, tmp_path, monkeypatch):
    """One whose reward model needed no accuracy, or whose evaluation is of another policy, whatever its gates
    say; only `promote --force`, a user's recorded decision, overrules.
    """
    from ratchet.tasks.registry import promotion, registration

    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.setattr(registration, "write_lineage", lambda *_: LINEAGE)
    (tmp_path / "evaluate").mkdir()
    verdict = {"passed": True, "reasons": ["ending: passed"], "gates": {"ending": True}}
    results = {"verdict": verdict, "metrics": {"final.ended": 0.5}}
    (tmp_path / "evaluate" / "results.json").write_text(json.dumps(results))
    artifacts = {
        "optimise_1": Artifact("weights", model(tmp_path / "weights", "w"), ""),
        "evaluate": Artifact("report", tmp_path / "evaluate", ""),
    }
    recorded = {}
    line = SimpleNamespace(
        recipe=replace(
            load("online_dpo", overrides=["claim=null", change])[0],
            register=Register("floor"),
        ),
        stages={
            "optimise_1": Stage("optimise_1", "optimise", "weights", {}, policy=True),
            "evaluate": Stage("evaluate", "evaluate", "report", {}),
        },
        artifact=artifacts.__getitem__,
        store=SimpleNamespace(home=tmp_path),
        run=SimpleNamespace(record=recorded.update),
    )
    mlflow = client(tmp_path)
    done = registration.register_run(line, mlflow.create_run(experiment_id(mlflow, tmp_path)).info.run_id)
    assert done["champion"] is (why == "") and recorded["verdict"]["passed"] is (why == "")
    (version,) = history("floor", home=tmp_path)
    assert ("metric.final.ended" in version.tags) is ("arms" not in why), "numbers of another policy"
    if why:
        assert why in recorded["verdict"]["reasons"][-1]
        with pytest.raises(ContractError, match=why):
            promotion.promote_by_hand("floor", "1", "it looks good", home=tmp_path)
        assert champion("floor", home=tmp_path) is None
        promotion.promote_by_hand("floor", "1", "it looks good", force=True, home=tmp_path)
        assert champion("floor", home=tmp_path).version == "1"


RACE = """
import json, sys, time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from mlflow import MlflowClient
from ratchet.components.recipes.plan import Stage
from ratchet.components.recipes.recipe import load
from ratchet.components.recipes.schema import Register
from ratchet.components.types import Artifact
from ratchet.tasks.registry import promotion
from ratchet.tasks.registry import registration

for name in ("create_logged_model", "set_registered_model_alias"):  # delays each write by a second after its read
    def slow(*args, was=getattr(MlflowClient, name), **more):
        time.sleep(1)
        return was(*args, **more)
    setattr(MlflowClient, name, slow)

act, home, given = sys.argv[1], Path(sys.argv[2]), sys.argv[3]
print("ready", flush=True)
sys.stdin.readline()
if act == "register":
    registration.write_lineage = lambda *_: {"data": {}}
    line = SimpleNamespace(recipe=replace(load("sft")[0], register=Register("race")), stages={"sft": Stage("sft", "sft", "weights", {})},
                           artifact=lambda _: Artifact("weights", home / "weights", ""), store=SimpleNamespace(home=home),
                           run=SimpleNamespace(record=lambda **_: None))
    print(registration.register_run(line, given)["versions"]["sft"])
else:
    print(promotion.promote_by_hand("race", given, "the other may not be forgotten", force=True, home=home)[0])
"""  # noqa: E501


@pytest.mark.slow
def test_concurrent_registration_creates_one_version_and_keeps_all_promotions(tmp_path, monkeypatch):
    """Without the lock both read before either writes: two versions of the same weights, and a champion event
    without `replaced`.
    """
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)

    def at_once(act, *given):
        env = {k: v for k, v in os.environ.items() if k != "PREFECT_API_URL"}
        children = [
            subprocess.Popen(
                [sys.executable, "-c", RACE, act, str(tmp_path), one],
                env=env,
                text=True,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
            )
            for one in given
        ]
        assert [child.stdout.readline() for child in children] == ["ready\n"] * 2
        for child in children:
            child.stdin.write("go\n")
            child.stdin.flush()
        return [child.communicate(timeout=100)[0].strip() for child in children]

    mlflow = client(tmp_path)
    runs = [mlflow.create_run(experiment_id(mlflow, tmp_path)).info.run_id for _ in range(2)]
    model(tmp_path / "weights", "w")
    assert at_once("register", *runs) == ["1", "1"] and len(history("race", home=tmp_path)) == 1
    other = register(model(tmp_path / "other", "o"), "race", lineage=LINEAGE, home=tmp_path)
    assert at_once("promote", "1", other) == ["1", other]
    now = champion("race", home=tmp_path)
    assert events(now)[-1]["replaced"] == ({"1", other} - {now.version}).pop()


@pytest.mark.parametrize("act", ["register", "promote", "rollback"])
def test_registry_requests_hold_the_lock(act, tmp_path, monkeypatch):
    import contextlib

    from ratchet.tasks.registry import promotion, registration

    turn, requested = [], []

    @contextlib.contextmanager
    def registry_lock(home):
        turn.append(home)
        yield
        turn.remove(home)

    def ask(home):
        requested.append(home in turn)
        raise ConnectionError("away")

    for module in (promotion, registration):
        monkeypatch.setattr(module, "registry_lock", registry_lock)
    monkeypatch.setattr("ratchet.tasks.tracking.server.client", ask)
    monkeypatch.setattr(registration, "write_lineage", lambda *_: {})
    weights = model(tmp_path / "weights", "w")
    line = SimpleNamespace(
        recipe=replace(load("sft")[0], register=Register("race")),
        stages={"sft": Stage("sft", "sft", "weights", {})},
        artifact=lambda _: Artifact("weights", weights, ""),
        store=SimpleNamespace(home=tmp_path),
    )
    if act == "register":
        assert "away" in registration.register_run(line, "run")["postponed"]
    else:
        with pytest.raises(ServiceError, match="away"):
            promotion.promote_by_hand(
                "race", "1", "why", home=tmp_path
            ) if act == "promote" else promotion.rollback("race", "why", home=tmp_path)
    assert requested and all(requested)
