"""Security: untrusted models, data, recipes and answers; secrets in files and messages."""

from __future__ import annotations

import ast
import json
import os
import pickle
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from ratchet.components.data.parsing import parse
from ratchet.components.data.pypi import _unpack
from ratchet.components.data.sources import fetch
from ratchet.components.errors import RecipeError, ServiceError, SourceError, StageError, redacted
from ratchet.components.models.load import REMOTE_CODE, load_policy, load_tokenizer, new_reward, save_model
from ratchet.components.recipes.recipe import dump, load, reread
from ratchet.tasks.pipeline import Pipeline

ROOT = Path(__file__).resolve().parents[1]
SECRETS = {
    "HF_TOKEN": "hf_plantedplantedplanted",
    "AWS_SECRET_ACCESS_KEY": "aws+planted/planted+key",
    "MLFLOW_TRACKING_PASSWORD": "planted-password-7",
    "PREFECT_API_AUTH_STRING": "admin:planted0123",
}


# --- what our own source does
# ---------------------------------------------------------------------------------------


def sources() -> Iterator[tuple[Path, ast.AST]]:
    for folder in ("components", "tasks", "flows"):
        for file in (ROOT / folder).rglob("*.py"):
            yield file.relative_to(ROOT), ast.parse(file.read_text())


def test_no_pickle_eval_or_public_listener_in_the_code() -> None:
    for file, tree in sources():
        for node in ast.walk(tree):
            names = (
                [a.name for a in node.names]
                if isinstance(node, ast.Import)
                else [node.module]
                if isinstance(node, ast.ImportFrom)
                else []
            )
            assert not {"pickle", "joblib", "dill", "cloudpickle", "shelve", "marshal"} & set(names), file
            if isinstance(node, ast.Constant):
                assert node.value not in ("0.0.0.0", "::"), f"{file} binds to every address"
            if not isinstance(node, ast.Call):
                continue
            called, options = ast.unparse(node.func), {k.arg for k in node.keywords}
            assert called not in (
                "torch.load",
                "yaml.load",
                "yaml.unsafe_load",
                "eval",
                "os.system",
                "os.popen",
            ), f"{file}: {called}"
            assert called != "exec" or file == Path("components/environments/confinement.py"), (
                f"{file} executes text"
            )
            assert not {"shell", "allow_pickle"} & options, f"{file}: {called}"
            if called.endswith("from_pretrained") and (
                called.startswith("Auto") or called.startswith("auto.")
            ):
                assert "trust_remote_code" in options or None in options, (
                    f"{file}, line {node.lineno}: says nothing of remote code"
                )
            for keyword in node.keywords:
                if keyword.arg == "trust_remote_code":
                    never = isinstance(keyword.value, ast.Constant) and keyword.value.value is False
                    assert never or ast.unparse(keyword.value).startswith("trusted("), (
                        f"{file}, line {node.lineno}: decides about remote code"
                    )


def test_only_one_function_sets_trust_remote_code() -> None:
    deciders = []
    for file, tree in sources():
        for node in ast.walk(tree):
            if (
                isinstance(node, ast.Constant)
                and isinstance(node.value, str)
                and "trust" in node.value
                and "remote" in node.value
            ):
                assert node.value == "--trust-remote-code" and file == Path(
                    "components/inference/vllm_arguments.py"
                ), f"{file}: {node.value!r}"
            if isinstance(node, (ast.FunctionDef, ast.Assign)) and "trusted" in (
                getattr(node, "name", ""),
                *map(ast.unparse, getattr(node, "targets", ())),
            ):
                deciders.append(str(file))
            if isinstance(node, ast.ImportFrom) and "trusted" in [
                alias.asname or alias.name for alias in node.names
            ]:
                assert node.module == "ratchet.components.models.load" and all(
                    alias.asname is None for alias in node.names
                ), file
    assert deciders == ["components/models/load.py"]


# --- models and archives of strangers
# -------------------------------------------------------------------------------


class Payload:
    """Unpickled, it writes a file."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self):
        return os.mkdir, (str(self.mark),)


def malicious(mark: Path) -> bytes:
    data = pickle.dumps(Payload(mark))
    pickle.loads(data)
    assert mark.is_dir(), "the payload is none"
    mark.rmdir()
    return data


def test_pickles_next_to_safetensors_are_ignored(tmp_path: Path, tiny_home: Path, tiny_model: Path) -> None:
    model, mark = tmp_path / "model", tmp_path / "pwned"
    shutil.copytree(tiny_model, model, ignore=shutil.ignore_patterns("manifest.json"))
    evil = [
        "pytorch_model.bin",
        "model.pt",
        "optimizer.pth",
        "training_args.bin",
        "adapter_model.bin",
        "data.pkl",
        "x.ckpt",
        "y.pickle",
    ]
    for name in evil:
        (model / name).write_bytes(malicious(mark))
    file = tmp_path / "mine.yaml"
    file.write_text(
        f"schema: 1\nabout: mine\nbase: sft\nmodels: {{policy: {{source: 'path:{model}', format: "
        f"huggingface}}}}\n"
    )
    artifact = Pipeline.open(file, home=tiny_home, profile="test").make("model_policy")
    assert not {p.name for p in artifact.path.iterdir()} & set(evil)
    for folder in (model, artifact.path):
        load_policy(folder)
        load_tokenizer(folder)
        new_reward(folder)
    assert not mark.exists()


def test_pickle_in_an_archive_is_not_loaded(tmp_path: Path) -> None:
    mark = tmp_path / "pwned"
    with zipfile.ZipFile(tmp_path / "data.whl", "w") as bundle:
        for name in ("rows.pkl", "model.pt", "data.bin", "__init__.py"):
            bundle.writestr(
                f"data/{name}",
                malicious(mark) if name != "__init__.py" else f"import os; os.mkdir({str(mark)!r})",
            )
        bundle.writestr("data/rows.jsonl", json.dumps({"prompt": "hi", "completion": "hello"}) + "\n")
    _unpack(tmp_path / "data.whl", tmp_path / "out", "")
    assert len(parse(tmp_path / "out").kept) == 1
    (tmp_path / "out" / "data" / "rows.jsonl").unlink()
    with pytest.raises(SourceError, match="holds no"):
        parse(tmp_path / "out")
    assert not mark.exists()


@pytest.mark.parametrize("kind", ["known", "stranger"])
def test_code_in_a_model_repository_is_not_run(kind: str, tmp_path: Path, tiny_model: Path) -> None:
    """`auto_map` in config.json refers to Python files in the repository; transformers cannot load an unknown
    model type without them.
    """
    from ratchet.components.evaluation.gold import Encoder
    from ratchet.components.text.contract import contract_of

    model, mark = tmp_path / "model", tmp_path / "ran"
    shutil.copytree(tiny_model, model, ignore=shutil.ignore_patterns("manifest.json"))
    (model / "evil.py").write_text(f"import os\nos.mkdir({str(mark)!r})\nclass Evil: pass\n")
    config = json.loads((model / "config.json").read_text())
    config["auto_map"] = {
        name: "evil.Evil"
        for name in ("AutoConfig", "AutoModel", "AutoModelForCausalLM", "AutoModelForSequenceClassification")
    }
    if kind == "stranger":
        config["model_type"] = "evil"
    (model / "config.json").write_text(json.dumps(config))
    tokenizer = json.loads((model / "tokenizer_config.json").read_text())
    (model / "tokenizer_config.json").write_text(
        json.dumps({**tokenizer, "auto_map": {"AutoTokenizer": ["evil.Evil", "evil.Evil"]}})
    )
    for read in (load_policy, load_tokenizer, new_reward, contract_of, Encoder):
        try:
            read(model)
        except (ValueError, KeyError, OSError, SourceError):
            assert kind == "stranger" or read is load_tokenizer, read
    assert not mark.exists()


OWN = """
from pathlib import Path
from transformers import LlamaConfig, LlamaForCausalLM

Path({mark!r}).touch()


class OwnConfig(LlamaConfig):
    model_type = "own"


class OwnForCausalLM(LlamaForCausalLM):
    config_class = OwnConfig
"""


@pytest.fixture
def own(tmp_path: Path, tiny_model: Path) -> tuple[Path, Path]:
    """A model that needs its own code to load and ships a forged permission file, and the marker file which
    that code creates.
    """
    model, mark = tmp_path / "own", tmp_path / "ran"
    shutil.copytree(tiny_model, model, ignore=shutil.ignore_patterns("manifest.json"))
    (model / "modeling_own.py").write_text(OWN.format(mark=str(mark)))
    (model / REMOTE_CODE).write_text("trust me")
    config = json.loads((model / "config.json").read_text())
    maps = {"AutoConfig": "modeling_own.OwnConfig", "AutoModelForCausalLM": "modeling_own.OwnForCausalLM"}
    (model / "config.json").write_text(
        json.dumps({**config, "model_type": "own", "architectures": ["OwnForCausalLM"], "auto_map": maps})
    )
    return model, mark


def recipe_of(model: Path, remote_code: str = "") -> Path:
    file = model.parent / f"mine{bool(remote_code)}.yaml"
    file.write_text(
        f"schema: 1\nabout: mine\nbase: sft\nmodels: {{policy: {{source: 'path:{model}', format: "
        f"huggingface{remote_code}}}}}\n"
    )
    return file


def test_remote_code_needs_permission_in_the_recipe(own: tuple[Path, Path], tiny_home: Path) -> None:
    model, mark = own
    with pytest.raises(SourceError, match=r"modeling_own\.py.*models\.<name>\.remote_code: true"):
        Pipeline.open(recipe_of(model), home=tiny_home, profile="test").make("model_policy")
    (model / REMOTE_CODE).unlink()
    for read in (load_policy, load_tokenizer, new_reward):
        with pytest.raises(SourceError, match=r"remote_code|code of its own"):
            read(model)
    assert not mark.exists()


def test_permitted_remote_code_is_copied_to_trained_models(
    own: tuple[Path, Path], tiny_home: Path, tmp_path: Path
) -> None:
    from ratchet.components.storage.store import read_manifest
    from ratchet.components.training.torch import TorchLearner

    model, mark = own
    (model / "pytorch_model.bin").write_bytes(malicious(tmp_path / "pwned"))
    artifact = Pipeline.open(recipe_of(model, ", remote_code: true"), home=tiny_home, profile="test").make(
        "model_policy"
    )
    assert {REMOTE_CODE, "modeling_own.py"} <= set(
        (read_manifest(artifact.path) or {})["files"]
    ) and "contract" in artifact.meta
    TorchLearner(artifact.path).save(tmp_path / "trained")
    for folder in (artifact.path, tmp_path / "trained"):
        mark.unlink(missing_ok=True)
        for name in [name for name in sys.modules if name.startswith("transformers_modules.")]:
            del sys.modules[name]
        assert type(load_policy(folder)).__name__ == "OwnForCausalLM" and mark.exists()
        assert not (tmp_path / "pwned").exists() and not (folder / "pytorch_model.bin").exists()
    with pytest.raises(SourceError, match="AutoModelForSequenceClassification"):
        new_reward(artifact.path)
    (tmp_path / "trained" / REMOTE_CODE).unlink()
    with pytest.raises(SourceError, match=r"remote_code|code of its own"):
        load_policy(tmp_path / "trained")


def test_remote_code_is_only_in_stages_of_its_model(tiny_model: Path, tmp_path: Path) -> None:
    from ratchet.components.recipes.plan import plan

    assert "remote_code" not in plan(*load("sft"))["model_policy"].options
    stages = plan(*load("chat", overrides=["models.policy.remote_code=true"]))
    assert [name for name, stage in stages.items() if stage.options.get("remote_code")] == ["model_policy"]
    save_model(load_policy(tiny_model), load_tokenizer(tiny_model), tmp_path)
    assert not (tmp_path / REMOTE_CODE).exists()


# --- paths
# ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "override",
    [
        "name=../../outside",
        "name=/tmp/outside",
        "name=..",
        "name=.hidden",
        "models.../x={source: 'path:x'}",
        'models={"../x": {source: "path:x"}}',
        'models={"a/b": {source: "path:x"}}',
        "register={model: ../x}",
    ],
)
def test_recipe_names_cannot_escape_the_run_directory(override: str, tmp_path: Path) -> None:
    with pytest.raises(RecipeError):
        Pipeline.open("sft", home=tmp_path / "home", profile="test", overrides=[override])
    assert not list(tmp_path.iterdir())


def test_ordinary_names_are_accepted() -> None:
    assert load("sft", overrides=["name=My model 1.5_b-c"])[0].name == "My model 1.5_b-c"


@pytest.mark.parametrize(
    "address",
    [
        "pypi:x==1!../../etc/passwd",
        "pypi:x==1!/etc/passwd",
        "hub:org/name!../x",
        "hub:{folder}!../key",
        "hub:{folder}!/etc/passwd",
        "hub:{folder}!a/../../key",
    ],
)
def test_subpath_cannot_escape_the_directory(address: str, tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "key").write_text("secret")
    with pytest.raises(SourceError, match="leads out of it"):
        fetch(address.format(folder=tmp_path / "folder"), tmp_path / "got")
    assert not (tmp_path / "got").exists()


def test_a_cached_download_that_was_changed_is_fetched_again(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "rows.jsonl").write_text('{"a": 1}\n')
    address = f"hub:{tmp_path / 'there'}!rows.jsonl"
    got = fetch(address, tmp_path / "got")
    got.unlink()  # a hard link where the disk allows one
    got.write_text('{"a": 2}\n')
    assert fetch(address, tmp_path / "got").read_text() == '{"a": 1}\n'


# --- secrets
# --------------------------------------------------------------------------------------------------------


def test_messages_hold_no_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", SECRETS["HF_TOKEN"])
    text = (
        f"401 for {SECRETS['HF_TOKEN']} at https://me:pass@host:5000/api and postgresql://u:p@db/x, "
        "see https://host/a@b"
    )
    assert (
        redacted(text)
        == "401 for *** at https://***@host:5000/api and postgresql://***@db/x, see https://host/a@b"
    )
    for error in (ServiceError(text), StageError(text, died=True)):
        assert str(error) == str(pickle.loads(pickle.dumps(error))) == redacted(text)


def test_a_number_of_tokens_is_no_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MAX_TOKENS", "131072")
    monkeypatch.setenv("API_TOKENS", "abc123,def456")
    assert redacted("context of 131072 tokens; abc123,def456") == "context of 131072 tokens; ***"


def test_errors_of_other_programs_are_redacted(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Errors of libraries, on the terminal, in the log and on the Prefect page."""
    from ratchet.tasks.data.drift import check_data_drift
    from ratchet.tasks.process.workers import _make
    from ratchet.tasks.tracking.watchers import PrefectPage

    error, page = OSError("401 for https://me:planted-in-a-url@host/api"), list[str]()

    def fail(*_: object, **__: object) -> None:
        raise error

    pipeline = Pipeline.open("sft", home=tmp_path, profile="test")
    pipeline.watchers = [SimpleNamespace(started=fail)]  # type: ignore[list-item]
    pipeline._notify("started", pipeline.stages["raw"], tmp_path)
    monkeypatch.setattr("ratchet.tasks.data.drift.last_run", fail)
    check_data_drift(pipeline)
    monkeypatch.setattr(
        "prefect.artifacts.create_markdown_artifact", lambda markdown, key: page.append(markdown)
    )
    PrefectPage().failed(pipeline.stages["raw"], error)
    seen = [capsys.readouterr().err]
    monkeypatch.setattr(pipeline, "make", fail)
    reported = _make(pipeline, "raw")[0]
    texts = [*seen, reported, "".join(capsys.readouterr()), caplog.text, *page]
    assert (
        all("401 for https://***@host/api" in text for text in texts)
        and len(texts) == 5
        and not leaks(tmp_path, *texts)
    )


TOKEN = SECRETS["HF_TOKEN"]


@pytest.mark.parametrize(
    ("override", "named"),
    [
        (f"about=made with {TOKEN}", "about: contains the value of the environment variable HF_TOKEN"),
        (
            f"data.source=hub:org/name@{TOKEN}",
            "data.source: contains the value of the environment variable HF_TOKEN",
        ),
        (
            f"evaluate.metrics=[{{name: rewards.reward_model, model: {TOKEN}}}]",
            r"evaluate.metrics\[0\].model: contains",
        ),
        (
            "models.policy.source=hub:https://me:secret@host/name",
            "models.policy.source: contains an address with a password",
        ),
    ],
)
def test_a_secret_in_a_recipe_is_refused_by_its_key(
    override: str, named: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clean = dump(*load("sft"))
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    with pytest.raises(RecipeError, match=rf"^{named}.*environment") as caught:
        load("sft", overrides=[override])
    assert TOKEN not in str(caught.value) and "secret@" not in str(caught.value)
    with pytest.raises(RecipeError, match=r"recipe\.about"):  # what another machine sends
        reread(clean.replace("about: ", f"about: {TOKEN} ", 1))
    profile = tmp_path / "mine.yaml"
    profile.write_text(f"vllm: {{scratch: /x/{TOKEN}}}\n")
    with pytest.raises(RecipeError, match=r"mine\.yaml\.vllm\.scratch"):
        load("sft", profile=str(profile))


def test_harmless_keys_are_not_treated_as_secrets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number, value in enumerate(
        [
            "",
            "true",
            "1",
            "0.5",
            "chat",
            "policy",
            "20261122",
            "tokenizer",
            "assistant",
            str(tmp_path),
            "https://huggingface.co",
        ]
    ):
        monkeypatch.setenv(f"A{number}_API_KEY", value)
    monkeypatch.setenv("PROJECT", "night-run_7b.2026")  # a name that says nothing of a secret
    about = (
        "night-run_7b.2026: true 1 0.5 chat: the policy of 20261122 with its tokenizer assistant, see "
        f"{tmp_path} and https://huggingface.co/x and me@host"
    )
    assert load("sft", overrides=[f"about='{about}'"])[0].about == about


def leaks(folder: Path, *texts: str) -> list[str]:
    values = [value.encode() for value in (*SECRETS.values(), "planted-in-a-url")]
    found = [
        f"{file}: {value!r}"
        for file in folder.rglob("*")
        if file.is_file()
        for value in values
        if value in file.read_bytes()
    ]
    return found + [f"output: {value!r}" for text in texts for value in values if value in text.encode()]


def test_planted_secret_leaks_nowhere_with_unreachable_server(fresh_home: Callable[[str], Path]) -> None:
    """The tracking server is away and its address holds a password; the token is in the environment and
    first, by mistake, in the recipe's text too. Then everything is sent to the local MLflow.
    """
    home = fresh_home("run")
    env = {**os.environ, **SECRETS, "PYTHONPATH": str(ROOT / "infra" / "package")}
    away = {**env, "MLFLOW_TRACKING_URI": "http://robot:planted-in-a-url@127.0.0.1:9"}
    options = [
        "--profile",
        "test",
        "--home",
        str(home),
        "--set",
        "sft.limit=16",
        "--set",
        "evaluate.prompts=4",
    ]
    command = [sys.executable, "-m", "ratchet.flows.cli", "run", "sft", *options]
    refused = subprocess.run(
        [*command, "--set", f"about=made with {TOKEN}"], cwd=home, env=away, capture_output=True, text=True
    )
    assert refused.returncode == 2 and refused.stderr.startswith("error: about: contains the value of"), (
        refused.stderr
    )
    assert not leaks(home, refused.stdout, refused.stderr)
    done = subprocess.run(command, cwd=home, env=away, capture_output=True, text=True)
    errors = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert done.returncode == 1 and len(errors) == 1 and "Traceback" not in done.stderr, done.stderr
    assert (
        errors[0].startswith("error: all stages are finished, but nothing is registered yet: ")
        and "http://" in errors[0]
    )
    assert "run again" in errors[0] and "nothing is lost" in errors[0]
    assert next(home.glob("store/sft-*/model.safetensors")).exists() and (home / "prefect").is_dir()
    sent = subprocess.run(
        [sys.executable, "-m", "ratchet.flows.cli", "sync", "--home", str(home)],
        cwd=home,
        env=env,
        capture_output=True,
        text=True,
    )
    assert sent.returncode == 0 and "uploaded" in sent.stdout, sent.stderr
    assert (home / "mlflow.db").exists()
    assert not leaks(home, done.stdout, done.stderr, sent.stdout, sent.stderr)


def test_a_failing_download_names_no_password(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://robot:planted-in-a-url@127.0.0.1:9")
    monkeypatch.setenv("PIP_INDEX_URL", "http://robot:planted-in-a-url@127.0.0.1:9/simple")
    monkeypatch.setenv("PIP_RETRIES", "0")
    for source in ("hub:org/name", "pypi:nothing==1.0"):
        file = tmp_path / "mine.yaml"
        file.write_text(f"schema: 1\nabout: mine\nbase: sft\ndata: {{source: '{source}'}}\n")
        with pytest.raises(SourceError) as caught:
            Pipeline.open(file, home=tmp_path / "home", profile="test").make("raw")
        assert not leaks(tmp_path / "home", str(caught.value))
