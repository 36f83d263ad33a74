"""MLmodel file of a registered version: MLflow's transformers and pyfunc flavours.

`mlflow.transformers.save_model` would copy the weights again and fails with transformers 5 for a directory.
Here its files are written next to the weights, which stay at the top level, so that `from_pretrained` works
on a downloaded version.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

from ratchet.tasks.machine.provenance import packages

TOKENIZER = (
    "tokenizer",
    "special_tokens",
    "added_tokens",
    "chat_template",
    "vocab",
    "merges",
    "spiece",
)  # prefixes of tokenizer file names
REQUIRED = ("mlflow", "torch", "transformers", "accelerate")
QUESTION = "Name three fruits."
FILES = (
    "MLmodel",
    "lineage.json",
    "input_example.json",
    "serving_input_example.json",
    "requirements.txt",
    "conda.yaml",
    "python_env.yaml",
    "registered_model_meta",
)  # files of a version that are not part of the model


def write_mlmodel(model_dir: Path, out: Path, *, name: str, model_id: str, run_id: str | None) -> bool:
    """Write MLmodel, signature, input example, requirements and a copy of the tokenizer for `model_dir` to
    `out`; the weights must be at the top level of the same MLflow model. A policy accepts `{"messages":
    [...]}` (MLflow task llm/v1/chat), a reward model rendered conversations. Returns False for a directory
    without a transformers class, such as a mean-pooled reward model.
    """
    file = model_dir / "config.json"
    architecture = (json.loads(file.read_text()).get("architectures") or [""])[0] if file.is_file() else ""
    if (model_dir / "reward_head.st").exists():
        return False
    if architecture.endswith("ForCausalLM"):
        _write(model_dir, out, _chat, architecture, name, model_id, run_id)
    elif architecture.endswith("ForSequenceClassification"):
        _write(model_dir, out, _scores, architecture, name, model_id, run_id)
    else:
        return False
    return True


def written_beside(name: str) -> bool:
    """Whether a file of a version's directory (relative path) was added by or for MLflow."""
    return name in FILES or name.startswith("components/")


def _chat(model_dir: Path) -> dict[str, Any]:
    from mlflow.transformers.llm_inference_utils import infer_signature_from_llm_inference_task

    return {
        "flavor": {
            "task": "text-generation",
            "instance_type": "TextGenerationPipeline",
            "inference_task": "llm/v1/chat",
        },
        "signature": infer_signature_from_llm_inference_task("llm/v1/chat"),
        "metadata": {"task": "llm/v1/chat"},
        "config": None,
        "example": {"messages": [{"role": "user", "content": QUESTION}], "max_tokens": 32},
    }


def _scores(model_dir: Path) -> dict[str, Any]:
    from mlflow.models import ModelSignature
    from mlflow.types.schema import ColSpec, Schema

    from ratchet.components.models.load import load_tokenizer

    talk = [{"role": "user", "content": QUESTION}, {"role": "assistant", "content": "Apple, pear and plum."}]
    tokenizer = load_tokenizer(model_dir)
    rendered = (
        tokenizer.apply_chat_template(talk, tokenize=False)
        if tokenizer.chat_template
        else "\n".join(turn["content"] for turn in talk)
    )
    return {
        "flavor": {"task": "text-classification", "instance_type": "TextClassificationPipeline"},
        "metadata": None,
        "example": [rendered],
        "signature": ModelSignature(
            Schema([ColSpec("string")]),
            Schema([ColSpec("string", name="label"), ColSpec("double", name="score")]),
        ),
        "config": {"function_to_apply": "none"},
    }  # raw score; the pipeline's default for one label is its sigmoid


def _write(
    model_dir: Path,
    out: Path,
    kind: Callable[[Path], dict[str, Any]],
    architecture: str,
    name: str,
    model_id: str,
    run_id: str | None,
) -> None:
    from mlflow import pyfunc
    from mlflow.models import Model
    from mlflow.models.utils import _save_example
    from mlflow.utils.environment import _mlflow_conda_env, _PythonEnv

    what, known = kind(model_dir), packages()
    requirements = [
        f"{package}=={known[package].partition('+')[0]}" for package in REQUIRED if package in known
    ]
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
    (out / "conda.yaml").write_text(
        yaml.safe_dump(_mlflow_conda_env(additional_pip_deps=requirements, install_mlflow=False))
    )
    folder = out / "components" / "tokenizer"
    folder.mkdir(parents=True)
    for file in model_dir.iterdir():
        if file.is_file() and file.name.startswith(TOKENIZER):
            shutil.copyfile(file, folder / file.name)
