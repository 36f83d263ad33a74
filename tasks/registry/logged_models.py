"""MLflow's logged models: the model behind a registered version, its link to the run, and its MLmodel file
with MLflow's transformers and pyfunc flavours.

`mlflow.transformers.save_model` would copy the weights again and fails with transformers 5 for a directory.
Here its files are written next to the weights, which stay at the top level, so that `from_pretrained` works
on a downloaded version.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from ratchet.tasks.machine.provenance import packages
from ratchet.tasks.tracking.server import allowed, cut, experiment_id, flatten

if TYPE_CHECKING:
    from mlflow import MlflowClient

MARK = "ratchet.key"
EXTERNAL = "mlflow.model.isExternal"  # MLflow's tag of models without files
LINEAGE = "lineage.json"  # the full lineage, in the registered model
TOKENIZER = ("tokenizer", "special_tokens", "added_tokens", "chat_template", "vocab", "merges", "spiece")
"""Prefixes of names of tokenizer files."""
REQUIRED = ("mlflow", "torch", "transformers", "accelerate")
QUESTION = "Name three fruits."
FILES = (
    "MLmodel",
    LINEAGE,
    "input_example.json",
    "serving_input_example.json",
    "requirements.txt",
    "conda.yaml",
    "python_env.yaml",
    "registered_model_meta",
)
"""Files of a version that are not part of the model."""


def logged_model(
    mlflow: MlflowClient,
    model_dir: Path,
    name: str,
    mark: str,
    lineage: Mapping[str, Any],
    run_id: str | None,
    external: bool,
    home: Path,
) -> str:
    """Id of a finished LoggedModel; reuses one from a killed attempt if finished, and removes an unfinished
    one.
    """
    experiment = mlflow.get_run(run_id).info.experiment_id if run_id else experiment_id(mlflow, home)
    kind = "true" if external else "false"
    for old in mlflow.search_logged_models([experiment], f"tags.`{MARK}` = '{mark}'"):
        if old.tags.get("external") == kind:
            if str(old.status) in ("READY", "LoggedModelStatus.READY"):
                return old.model_id
            mlflow.delete_logged_model(old.model_id)
    tags = {MARK: mark, "external": kind} | ({EXTERNAL: "true"} if external else {})
    about = flatten({"data": lineage.get("data", {}), "recipe": lineage.get("recipe", "")})
    params = {name: cut(value, 250) for name, value in about.items()}
    model = mlflow.create_logged_model(experiment, name=name, source_run_id=run_id, tags=tags, params=params)
    if not external:
        mlflow.log_model_artifacts(model.model_id, str(model_dir))
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / LINEAGE).write_text(json.dumps(lineage, indent=1))
        if external:  # the server requires an MLmodel file
            from mlflow.models.utils import get_external_mlflow_model_spec

            get_external_mlflow_model_spec(model).save(str(Path(folder) / "MLmodel"))
        else:
            _write_mlmodel(model_dir, Path(folder), name, model.model_id, run_id)
        mlflow.log_model_artifacts(model.model_id, folder)
    mlflow.finalize_logged_model(model.model_id, "READY")
    return model.model_id


def replace_lineage(mlflow: MlflowClient, model_id: str, lineage: Mapping[str, Any]) -> None:
    """Replace the lineage stored with a model."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / LINEAGE).write_text(json.dumps(lineage, indent=1))
        mlflow.log_model_artifacts(model_id, folder)


def link_to_run(mlflow: MlflowClient, run_id: str, model_id: str, metrics: Mapping[str, float]) -> None:
    """Add the model and its metrics to the run's page; the link last, since it marks completion."""
    from mlflow.entities import LoggedModelOutput, Metric

    outputs = mlflow.get_run(run_id).outputs
    if outputs and any(made.model_id == model_id for made in outputs.model_outputs):
        return
    now = int(datetime.now(UTC).timestamp() * 1000)
    if metrics:
        mlflow.log_batch(
            run_id,
            metrics=[Metric(allowed(k), float(v), now, 0, model_id=model_id) for k, v in metrics.items()],
        )
    mlflow.log_outputs(run_id, [LoggedModelOutput(model_id, 0)])


def written_beside(name: str) -> bool:
    """Whether a file of a version's directory (relative path) was added by or for MLflow."""
    return name in FILES or name.startswith("components/")


def _write_mlmodel(model_dir: Path, out: Path, name: str, model_id: str, run_id: str | None) -> None:
    """Write MLmodel, signature, input example, requirements and a copy of the tokenizer for `model_dir` to
    `out`; the weights must be at the top level of the same MLflow model. A policy accepts `{"messages":
    [...]}` (MLflow task llm/v1/chat), a reward model rendered conversations. Nothing for a directory without
    a transformers class, such as a mean-pooled reward model.
    """
    file = model_dir / "config.json"
    architecture = (json.loads(file.read_text()).get("architectures") or [""])[0] if file.is_file() else ""
    if (model_dir / "reward_head.st").exists():
        return
    if architecture.endswith("ForCausalLM"):
        what = _chat()
    elif architecture.endswith("ForSequenceClassification"):
        what = _scores(model_dir)
    else:
        return
    from mlflow import pyfunc
    from mlflow.models import Model
    from mlflow.models.utils import _save_example
    from mlflow.utils.environment import _mlflow_conda_env, _PythonEnv

    known = packages()
    versions = {package: known[package].partition("+")[0] for package in REQUIRED if package in known}
    requirements = [f"{package}=={version}" for package, version in versions.items()]
    model = Model(
        model_id=model_id,
        model_uuid=model_id,
        run_id=run_id,
        artifact_path=name,
        signature=what["signature"],
        metadata=what["metadata"],
    )
    model.add_flavor(
        "transformers",
        transformers_version=known["transformers"],
        code=None,
        pipeline_model_type=architecture,
        source_model_name=name,
        model_binary=".",
        components=["tokenizer"],
        tokenizer_type="AutoTokenizer",
        **what["flavor"],
    )
    pyfunc.add_to_model(
        model,
        loader_module="mlflow.transformers",
        conda_env="conda.yaml",
        python_env="python_env.yaml",
        model_config=what["config"],
    )
    _save_example(model, what["example"], str(out))
    model.model_size_bytes = sum(file.stat().st_size for file in model_dir.rglob("*") if file.is_file())
    model.save(str(out / "MLmodel"))
    (out / "requirements.txt").write_text("\n".join(requirements) + "\n")
    _PythonEnv.current().to_yaml(str(out / "python_env.yaml"))
    conda = _mlflow_conda_env(additional_pip_deps=requirements, install_mlflow=False)
    (out / "conda.yaml").write_text(yaml.safe_dump(conda))
    folder = out / "components" / "tokenizer"
    folder.mkdir(parents=True)
    for file in model_dir.iterdir():
        if file.is_file() and file.name.startswith(TOKENIZER):
            shutil.copyfile(file, folder / file.name)


def _chat() -> dict[str, Any]:
    from mlflow.transformers.llm_inference_utils import infer_signature_from_llm_inference_task

    return {
        "flavor": {
            "task": "text-generation",
            "instance_type": "TextGenerationPipeline",
            "inference_task": "llm/v1/chat",
        },
        "metadata": {"task": "llm/v1/chat"},
        "signature": infer_signature_from_llm_inference_task("llm/v1/chat"),
        "config": None,
        "example": {"messages": [{"role": "user", "content": QUESTION}], "max_tokens": 32},
    }


def _scores(model_dir: Path) -> dict[str, Any]:
    from mlflow.models import ModelSignature
    from mlflow.types.schema import ColSpec, Schema

    from ratchet.components.models.load import load_tokenizer

    talk = [{"role": "user", "content": QUESTION}, {"role": "assistant", "content": "Apple, pear and plum."}]
    tokenizer, rendered = load_tokenizer(model_dir), "\n".join(turn["content"] for turn in talk)
    if tokenizer.chat_template:
        rendered = tokenizer.apply_chat_template(talk, tokenize=False)
    given = Schema([ColSpec("string")])
    scored = Schema([ColSpec("string", name="label"), ColSpec("double", name="score")])
    return {
        "flavor": {"task": "text-classification", "instance_type": "TextClassificationPipeline"},
        "metadata": None,
        "example": [rendered],
        "signature": ModelSignature(given, scored),
        "config": {"function_to_apply": "none"},  # raw score; by default, one label gets its sigmoid
    }
