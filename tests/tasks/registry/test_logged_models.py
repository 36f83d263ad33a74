"""Registered versions through MLflow's loaders and server, against transformers on the same directory."""

import contextlib
import json
import os
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest
import torch

from ratchet.components.models.load import load_tokenizer, new_reward, save_model
from ratchet.flows.ui import free_port, wait_for
from ratchet.tasks.registry.exporting import export
from ratchet.tasks.registry.registry import promote, register
from ratchet.tasks.registry.versions import history
from ratchet.tasks.tracking.server import client, tracking_uri

VLLM = os.environ.get("RATCHET_VLLM_PYTHON", "")
MESSAGES = [{"role": "user", "content": "Hello there"}]
GREEDY = {
    "messages": MESSAGES,
    "max_tokens": 8,
    "temperature": 1e-4,
}  # by default transformers' pipeline samples


@pytest.fixture(scope="module")
def home(tmp_path_factory, tiny_model):
    """A registry whose champion of `tiny` is the tiny policy and that of `tiny-reward` a reward model of one
    of its layers.
    """
    home = tmp_path_factory.mktemp("mlmodel")
    save_model(new_reward(tiny_model, layers=1), load_tokenizer(tiny_model), home / "reward")
    for name, path in {"tiny": tiny_model, "tiny-reward": home / "reward"}.items():
        promote(
            name,
            register(path, name, lineage={"data": {"pairs": "d1"}}, home=home),
            {"passed": True},
            home=home,
        )
    return home


@pytest.fixture
def registry(home, monkeypatch):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", tracking_uri(home))


@pytest.fixture(scope="module")
def answer(tiny_model):
    """The greedy answer of transformers."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model, tokenizer = (
        AutoModelForCausalLM.from_pretrained(tiny_model),
        AutoTokenizer.from_pretrained(tiny_model),
    )
    prompt = tokenizer.apply_chat_template(
        MESSAGES, add_generation_prompt=True, return_tensors="pt", return_dict=True
    )
    made = model.generate(**prompt, max_new_tokens=8, do_sample=False)[0, prompt["input_ids"].shape[1] :]
    return tokenizer.decode(made, skip_special_tokens=True).lstrip()


def test_transformers_load_model_gives_a_pipeline_of_the_champion(registry, answer):
    import mlflow

    pipeline = mlflow.transformers.load_model("models:/tiny@champion")
    assert (
        pipeline(MESSAGES, max_new_tokens=8, do_sample=False)[0]["generated_text"][-1]["content"].lstrip()
        == answer
    )


def test_pyfunc_load_model_answers_chat_messages(registry, answer):
    import mlflow

    model = mlflow.pyfunc.load_model("models:/tiny@champion")
    said = model.predict(GREEDY)[0]
    assert (
        said["choices"][0]["message"] == {"role": "assistant", "content": answer} and said["model"] == "tiny"
    )
    assert (
        set(model.input_example) == {"messages", "max_tokens"}
        and model.metadata.get_input_schema().has_input_names()
    )


def test_pyfunc_load_model_gives_the_scores_of_a_reward_model(registry, home):
    import mlflow
    from transformers import AutoModelForSequenceClassification

    model = mlflow.pyfunc.load_model("models:/tiny-reward@champion")
    text = model.input_example[0][0] if hasattr(model.input_example, "columns") else model.input_example[0]
    tokens = load_tokenizer(home / "reward")(text, return_tensors="pt")
    with torch.no_grad():
        score = AutoModelForSequenceClassification.from_pretrained(home / "reward")(**tokens).logits.item()
    assert model.predict([text])["score"][0] == pytest.approx(score, abs=1e-5) and "pear" in text


def test_a_registered_version_holds_its_weights_once_and_is_a_plain_directory(registry, home, tiny_model):
    from mlflow.artifacts import download_artifacts
    from transformers import AutoModelForCausalLM

    files = [
        p
        for p in (home / "mlartifacts").rglob("*.safetensors")
        if p.stat().st_size > (tiny_model / "model.safetensors").stat().st_size / 2
    ]
    got = download_artifacts("models:/tiny@champion")
    assert [file.parent for file in files if str(file).startswith(got.rstrip("/"))] == [files[0].parent]
    assert (
        AutoModelForCausalLM.from_pretrained(got).config.vocab_size
        == AutoModelForCausalLM.from_pretrained(tiny_model).config.vocab_size
    )
    requirements = (files[0].parent / "requirements.txt").read_text()
    assert "transformers==" in requirements and "torch==" in requirements and "+cpu" not in requirements


def test_a_directory_that_transformers_has_no_class_for_is_registered_without_a_flavour(tmp_path):
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text(json.dumps({"architectures": ["SomethingElse"]}))
    register(tmp_path / "model", "other", lineage={}, home=tmp_path)
    made = client(tmp_path).list_logged_model_artifacts(history("other", home=tmp_path)[0].model_id)
    assert sorted(file.path for file in made) == ["config.json", "lineage.json"]


@contextlib.contextmanager
def serving(command, log, alive, seconds, **variables):
    """A server of its own process group, which answers at `alive`."""
    with open(log, "w") as out:
        process = subprocess.Popen(
            command, env={**os.environ, **variables}, stdout=out, stderr=out, start_new_session=True
        )
    try:
        wait_for(alive, process, log, seconds)
        yield
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, 15)
        process.wait(100)


def post(url, body):
    asked = urllib.request.Request(
        url, headers={"Content-Type": "application/json"}, data=json.dumps(body).encode()
    )
    with urllib.request.urlopen(asked, timeout=60) as said:
        return json.load(said)


@pytest.mark.slow
def test_mlflow_models_serve_answers_over_http(registry, home, answer):
    at = f"http://127.0.0.1:{(port := free_port())}"
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"  # where MLflow looks for uvicorn
    command = [
        sys.executable,
        "-m",
        "mlflow",
        "models",
        "serve",
        "-m",
        "models:/tiny@champion",
        "--env-manager",
        "local",
        "--port",
        str(port),
        "--workers",
        "1",
    ]
    with serving(command, home / "serve.log", f"{at}/ping", 120, PATH=path):
        said = post(f"{at}/invocations", GREEDY)[0]
        assert said["choices"][0]["message"]["content"] == answer


@pytest.mark.slow
@pytest.mark.skipif(not VLLM, reason="RATCHET_VLLM_PYTHON names no environment with vllm")
@pytest.mark.parametrize("made", ["registered", "exported"])
def test_vllm_serves_versions_and_exports(registry, home, tiny_model, answer, made, tmp_path):
    """vLLM's own server over the OpenAI API: the greedy answer is that of transformers."""
    from mlflow.artifacts import download_artifacts

    place = (
        download_artifacts("models:/tiny@champion")
        if made == "registered"
        else export(str(tiny_model), tmp_path / "out", home=home)
    )
    assert (Path(place) / "MLmodel").exists() == (made == "registered")
    at = f"http://127.0.0.1:{(port := free_port())}"
    command = [
        VLLM,
        "-m",
        "vllm.entrypoints.openai.api_server",
        "--model",
        str(place),
        "--served-model-name",
        "tiny",
        "--dtype",
        "float32",
        "--enforce-eager",
        "--max-model-len",
        "256",
        "--max-num-seqs",
        "2",
        "--host",
        "127.0.0.1",
        "--port",
        str(port),
    ]
    with serving(
        command,
        tmp_path / "log",
        f"{at}/health",
        300,
        VLLM_CPU_KVCACHE_SPACE="1",
        VLLM_CPU_OMP_THREADS_BIND="nobind",
        VLLM_NO_USAGE_STATS="1",
        HF_HUB_OFFLINE="1",
        PYTHONPATH="",
    ):
        said = post(
            f"{at}/v1/chat/completions",
            {"model": "tiny", "messages": MESSAGES, "max_tokens": 8, "temperature": 0},
        )
    assert said["choices"][0]["message"]["content"].strip() == answer.strip()
