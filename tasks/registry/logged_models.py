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
WRITTEN = (
    "MLmodel",
    "components",
    "input_example.json",
    "serving_input_example.json",
    "requirements.txt",
    "conda.yaml",
    "python_env.yaml",
    "registered_model_meta",
)
"""Files and directories of a version that MLflow needs and that are not part of the model."""


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
    kind = str(external).lower()
    same = f"tags.`{MARK}` = '{mark}' AND tags.external = '{kind}'"
    for old in mlflow.search_logged_models([experiment], same):
        if old.status == "READY":
            return old.model_id
        mlflow.delete_logged_model(old.model_id)
    tags = {MARK: mark, "external": kind} | ({EXTERNAL: "true"} if external else {})
    about = flatten({"data": lineage.get("data", {}), "recipe": lineage.get("recipe", "")})
    params = {name: cut(value, 250) for name, value in about.items()}
    model = mlflow.create_logged_model(experiment, name=name, source_run_id=run_id, tags=tags, params=params)
    with tempfile.TemporaryDirectory() as folder:
        if external:  # the server requires an MLmodel file
            from mlflow.models.utils import get_external_mlflow_model_spec

            get_external_mlflow_model_spec(model).save(str(Path(folder) / "MLmodel"))
        else:
            mlflow.log_model_artifacts(model.model_id, str(model_dir))
            _write_mlmodel(model_dir, Path(folder), name, model.model_id, run_id)
        (Path(folder) / LINEAGE).write_text(json.dumps(lineage, indent=1))
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
        flavor, described = _chat()
    elif architecture.endswith("ForSequenceClassification"):
        flavor, described = _scores(model_dir)
    else:
        return
    from mlflow import pyfunc
    from mlflow.models import Model

    known = packages()
    versions = {package: known[package].partition("+")[0] for package in REQUIRED if package in known}
    model = Model(model_id=model_id, model_uuid=model_id, run_id=run_id, artifact_path=name)
    model.add_flavor(
        "transformers",
        transformers_version=known["transformers"],
        code=None,
        pipeline_model_type=architecture,
        source_model_name=name,
        model_binary=".",
        components=["tokenizer"],
        tokenizer_type="AutoTokenizer",
        **flavor,
    )
    pyfunc.save_model(
        str(out),
        loader_module="mlflow.transformers",
        mlflow_model=model,
        pip_requirements=[f"{package}=={version}" for package, version in versions.items()],
        **described,
    )
    model.model_size_bytes = sum(file.stat().st_size for file in model_dir.rglob("*") if file.is_file())
    model.save(str(out / "MLmodel"))
    folder = out / "components" / "tokenizer"
    folder.mkdir(parents=True)
    for file in model_dir.iterdir():
        if file.is_file() and file.name.startswith(TOKENIZER):
            shutil.copyfile(file, folder / file.name)


def _chat() -> tuple[dict[str, Any], dict[str, Any]]:
    """Options of the transformers flavour of a policy, and signature, example and settings of pyfunc."""
    from mlflow.transformers.llm_inference_utils import infer_signature_from_llm_inference_task

    task = "llm/v1/chat"
    return {
        "task": "text-generation",
        "instance_type": "TextGenerationPipeline",
        "inference_task": task,
    }, {
        "metadata": {"task": task},
        "signature": infer_signature_from_llm_inference_task(task),
        "input_example": {"messages": [{"role": "user", "content": QUESTION}], "max_tokens": 32},
    }


def _scores(model_dir: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """The same of a reward model."""
    from mlflow.models import ModelSignature
    from mlflow.types.schema import ColSpec, Schema

    from ratchet.components.models.load import load_tokenizer

    talk = [{"role": "user", "content": QUESTION}, {"role": "assistant", "content": "Apple, pear and plum."}]
    tokenizer, rendered = load_tokenizer(model_dir), "\n".join(turn["content"] for turn in talk)
    if tokenizer.chat_template:
        rendered = tokenizer.apply_chat_template(talk, tokenize=False)
    scored = Schema([ColSpec("string", name="label"), ColSpec("double", name="score")])
    return {"task": "text-classification", "instance_type": "TextClassificationPipeline"}, {
        "signature": ModelSignature(Schema([ColSpec("string")]), scored),
        "input_example": [rendered],
        "model_config": {"function_to_apply": "none"},  # raw score; by default, one label gets its sigmoid
    }
