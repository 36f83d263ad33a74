"""LoRA adapters as peft saves them (adapter_config.json, adapter_model.safetensors): merging, saving, and
adapter-disabled scoring.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, final

from ratchet.components.errors import SourceError
from ratchet.components.types import Group

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
FOLDER = "adapter"  # subfolder of the merged model
KINDS = {"CAUSAL_LM": "AutoModelForCausalLM", "SEQ_CLS": "AutoModelForSequenceClassification"}


def is_adapter(path: Path) -> bool:
    return (Path(path) / CONFIG).is_file() and not (Path(path) / "config.json").is_file()


def base_of(adapter: Path) -> str:
    """Address of the base model in adapter_config.json: a local directory or a Hub repository."""
    config = _config(adapter)
    name, revision = config.get("base_model_name_or_path") or "", config.get("revision")
    if not name:
        raise SourceError(
            f"{adapter}: {CONFIG} names no base model; set models.<name>.base to hub:org/name or path:FOLDER"
        )
    if Path(name).is_dir():
        return f"path:{Path(name).absolute()}"
    if name.startswith(("/", ".")) or name.count("/") != 1:
        raise SourceError(
            f"{adapter}: {CONFIG} names the base model {name!r}, which is neither a local directory nor "
            "an org/name of the Hub; "
            "set models.<name>.base to hub:org/name or path:FOLDER"
        )
    return f"hub:{name}{f'@{revision}' if revision else ''}"


def merge_adapter(adapter: Path, base: Path, out: Path) -> None:
    """Merge a LoRA adapter into its base model, in float32, and save it as a plain directory, with the
    adapter's tokenizer if it has one. `SourceError` for an adapter that is not a LoRA, is pickled or does not
    fit its base.
    """
    import torch
    import transformers
    from peft import PeftModel, get_peft_model_state_dict
    from safetensors import safe_open

    from ratchet.components.models.load import load_from, load_tokenizer, save_model

    config = _config(adapter)
    kind = KINDS.get(str(config.get("task_type") or "CAUSAL_LM"))
    if config.get("peft_type") != "LORA" or kind is None:
        raise SourceError(
            f"{adapter}: expected a LoRA (peft_type LORA) of a causal language model or a sequence "
            "classifier, got peft_type "
            f"{config.get('peft_type')} with task_type {config.get('task_type')}; merge it with peft and "
            "use the merged model"
        )
    if not (adapter / WEIGHTS).is_file():
        raise SourceError(
            f"{adapter}: holds no {WEIGHTS} (pickles are never read); save it again with peft's "
            "save_pretrained"
        )
    own = any((adapter / name).is_file() for name in ("tokenizer.json", "tokenizer.model", "vocab.json"))
    tokenizer, auto = load_tokenizer(adapter if own else base), getattr(transformers, kind)
    model: Any = load_from(
        auto, base, "eager", torch.float32, **({"num_labels": 1} if kind == KINDS["SEQ_CLS"] else {})
    )
    if len(tokenizer) > model.get_input_embeddings().num_embeddings:
        model.resize_token_embeddings(len(tokenizer))
    if kind == KINDS["SEQ_CLS"]:
        model.config.pad_token_id = tokenizer.pad_token_id
    try:
        adapted: Any = PeftModel.from_pretrained(model, str(adapter), local_files_only=True)
        with safe_open(adapter / WEIGHTS, "pt") as file:
            odd = {
                key
                for key in {*file.keys()} ^ {*get_peft_model_state_dict(adapted, save_embedding_layers=False)}
                if "lora_" in key
            }
        if odd:  # peft would load the rest with at most a warning
            raise ValueError(f"{len(odd)} of its tensors have no counterpart there, such as {min(odd)}")
    except Exception as error:  # peft and torch raise various exceptions here
        raise SourceError(
            f"{adapter}: does not fit its base model {base} ({' '.join(str(error).split())[:300]}); set "
            "models.<name>.base to the model "
            "that it was trained on"
        ) from error
    text = tokenizer("The quick brown fox", return_tensors="pt")["input_ids"]
    with torch.no_grad():
        expected = adapted(text).logits
        save_model(adapted.merge_and_unload(), tokenizer, out)
        found: Any = load_from(auto, out, "eager", torch.float32)(text).logits
    if not torch.allclose(found, expected, rtol=1e-3, atol=1e-3 * float(expected.abs().max())):
        raise SourceError(
            f"{adapter}: after merging, saving and reloading, the logits differ from base plus adapter by "
            "up to "
            f"{float((found - expected).abs().max()):.3g}; the adapter changes weights that are tied in "
            "this model: merge it with peft"
        )


def save_adapter(adapted: Any, path: Path) -> None:
    """Save the adapter of a peft model. The base model's name is removed from adapter_config.json, since it
    is a local path: the same training gives the same bytes on any machine. Models that wrap a transformers
    model (value head, MeanReward) save none.
    """
    from transformers import PreTrainedModel

    if not isinstance(adapted.get_base_model(), PreTrainedModel):
        return
    adapted.save_pretrained(
        path, save_embedding_layers=False
    )  # else peft looks up the base model on the Hub to compare vocabularies
    (path / "README.md").unlink(missing_ok=True)
    config = {
        key: sorted(value) if isinstance(value, list) else value for key, value in _config(path).items()
    }
    (path / CONFIG).write_text(
        json.dumps({**config, "base_model_name_or_path": None}, indent=2, sort_keys=True) + "\n"
    )
    for file in path.iterdir():
        file.chmod(0o644)


def _config(adapter: Path) -> dict[str, Any]:
    try:
        return json.loads((Path(adapter) / CONFIG).read_text())
    except ValueError as error:
        raise SourceError(f"{adapter}: {CONFIG} is not valid JSON: {error}") from None


@final
class AdapterDisabledReference:
    """Reference policy for LoRA: the training model with its adapter disabled, without a second model in
    memory.

    Replaces an engine in `Context.models`; `weights` is the digest of the base weights. Whatever else a piece
    asks of an engine (answers, hidden states) is that of `whole()`, a second model, which is loaded then.
    `lockstep`: the learner's weights are sharded (ZeRO-3), so that all ranks must score together.
    """

    def __init__(self, learner: Any, tokens: int, weights: str, whole: Callable[[], Any]) -> None:
        self._learner, self._tokens, self.weights, self._whole = learner, tokens, weights, whole
        self.lockstep = getattr(learner, "stage", 0) == 3

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._whole(), name)

    def score(self, groups: Sequence[Group], outputs: frozenset[str]) -> list[Mapping[str, list[Any]]]:
        """As `Engine.score`: per group, requested output -> one list (T) per trajectory."""
        import torch

        from ratchet.components.training.packing import pack

        found: list[Mapping[str, list[Any]]] = [{output: [] for output in outputs} for _ in groups]
        with torch.no_grad(), self._learner.trained.disable_adapter():
            for batch in pack(groups, unit="row", tokens=self._tokens):
                out = self._learner(batch, outputs)
                for output in outputs:
                    for row, group in enumerate(batch.group.tolist()):
                        found[group][output].append(
                            getattr(out, output)[row, : len(batch.inputs["tokens"][row])].tolist()
                        )
        return found
