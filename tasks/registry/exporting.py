"""Export of a model (of a run, the registry or a directory) as a Hugging Face directory with a model card."""

from __future__ import annotations

import json
import re
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from ratchet.components.errors import RecipeError, StoreError
from ratchet.components.stages.fetch import PICKLES, RECORDS
from ratchet.components.storage.store import Store, disk_errors, read_manifest
from ratchet.components.types import Artifact
from ratchet.tasks.registry.lineage import lineage_of
from ratchet.tasks.registry.registry_sources import bring
from ratchet.tasks.registry.weights import locate
from ratchet.tasks.tracking.results import as_text

LEFT_OUT = (*RECORDS, "README.md", *PICKLES)  # store metadata, and the model card of the source
USE = {
    "text-generation": """```python
from transformers import pipeline

answer = pipeline("text-generation", "path/to/this/folder")
print(answer([{"role": "user", "content": "Name three fruits."}])[0]["generated_text"][-1]["content"])
```""",
    "text-classification": """It is a reward model: it scores a conversation, rendered by its chat template.

```python
from transformers import AutoModelForSequenceClassification, AutoTokenizer

model, tokenizer = (auto.from_pretrained("path/to/this/folder") for auto in (AutoModelForSequenceClassification, AutoTokenizer))
talk = [{"role": "user", "content": "Name three fruits."}, {"role": "assistant", "content": "Apple, pear and plum."}]
tokens = tokenizer.apply_chat_template(talk, return_tensors="pt", return_dict=True)
print(model(**tokens).logits.item())
```""",  # noqa: E501
}


def export(model: str, out: Path, *, home: Path) -> Path:
    """Copy the model to the new directory `out`, atomically, with a model card. `RecipeError` for an
    unknown model or a non-empty `out`, `StoreError` if its files are missing or damaged.
    """
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise RecipeError(f"{out} exists and is not an empty directory; name a new one")
    title, found = list(locate(model, home).items())[-1]
    place, version = found.path, found.version
    if version is None and not (place / "config.json").is_file():
        raise RecipeError(f"{place} contains no model (config.json expected)")
    manifest = read_manifest(place)
    made = lineage_of(found, home) if version or manifest else {}
    out.parent.mkdir(parents=True, exist_ok=True)
    with (
        disk_errors(f"exporting {model}"),
        tempfile.TemporaryDirectory(prefix=f".{out.name}-", dir=out.parent) as scratch,
    ):
        if version:
            place = Path(scratch) / "registered"
            bring(f"registry:{version.name}/{version.version}", version.tags.get("weights"), place, home)
        elif manifest:
            Store(home).verify(Artifact(manifest["kind"], place, manifest["key"]))
        whole = Path(scratch) / "model"
        shutil.copytree(place, whole, ignore=shutil.ignore_patterns(*LEFT_OUT))
        if not any(whole.glob("*.safetensors")):
            raise StoreError(
                f"{place} contains no weights (model.safetensors expected; pickles are never exported)"
            )
        title = f"{found.run.name}/{title}" if found.run else title
        (whole / "README.md").write_text(_model_card(whole, made, title))
        whole.chmod(0o755)
        if out.exists():
            out.rmdir()
        whole.rename(out)
    return out


def _model_card(model_dir: Path, made: Mapping[str, Any], title: str) -> str:
    """Model card in Markdown with Hub metadata, without local paths. `made`: lineage, or empty."""
    architecture = (json.loads((model_dir / "config.json").read_text()).get("architectures") or [""])[0]
    task = "text-classification" if "Classification" in architecture else "text-generation"
    sources = {
        name: str(stage["meta"]["source"])
        for name, stage in made.get("stages", {}).items()
        if stage.get("meta", {}).get("source")
    }
    base = re.match(r"hub:(?:models/)?([\w.-]+/[\w.-]+)", sources.get("model_policy", ""))
    tags = ["ratchet", "reward-model" if task == "text-classification" else "rlhf"]
    head = {"library_name": "transformers", "pipeline_tag": task, "tags": tags}
    if base:
        head["base_model"] = base.group(1)
    parts = [f"---\n{yaml.safe_dump(head, sort_keys=False)}---\n\n# {title}", USE[task]]
    if made:
        resolved = yaml.safe_load(made.get("resolved") or "") or {}
        about = resolved.get("recipe", {}).get("about", "")
        parts += [
            f"Made by the recipe `{made['recipe']}` of Ratchet (stage `{made['product']}`, run "
            f"`{made['run']}`). {about}".strip(),
            *_results(made),
            *_certificate(made),
            _lineage(made, sources),
        ]
    return "\n\n".join(parts) + "\n"


def _results(made: Mapping[str, Any]) -> list[str]:
    """Gates, and all metrics with 95 % intervals if available."""
    results = made.get("results", {})
    verdict, metrics = results.get("verdict", {}), as_text(results.get("metrics", {}))
    if not metrics:
        return []
    cells = [(name, *text.partition(" ")[::2]) for name, text in metrics.items()]
    rows = [f"| {name} | {value} | {interval} |" for name, value, interval in cells]
    gates = "\n".join(["", *(f"* {reason}" for reason in verdict.get("reasons", ()))])
    return [
        "## Evaluation",
        f"The gates of its recipe **{'passed' if verdict['passed'] else 'did not pass'}**:\n{gates}"
        if verdict.get("gates")
        else "Its recipe has no gates.",
        "On held-out prompts, with 95 % bootstrap intervals over prompts:",
        "\n".join(["| metric | value | 95 % interval |", "|---|---|---|", *rows]),
    ]


def _certificate(made: Mapping[str, Any]) -> list[str]:
    certificate = made["stages"][made["product"]].get("meta", {}).get("certificate")
    if not certificate:
        return []
    found = certificate["accuracy"]
    return [
        "## Certificate",
        f"{'Passed' if certificate['passed'] else 'Failed'}: it prefers the chosen answer in "
        f"{found['mean']:.1%} [{found['low']:.1%}, {found['high']:.1%}] of {certificate['pairs']} held-out "
        "pairs.",
    ]


def _lineage(made: Mapping[str, Any], sources: Mapping[str, str]) -> str:
    rows = []
    for name, stage in made["stages"].items():
        source = sources.get(name, "")
        public = "a local file" if source.startswith("path:") else source
        kind, digest = stage.get("kind", "lost"), stage.get("content", "")[:16]
        rows.append(f"| {name} | {kind} | {public} | `{digest}` |")
    packages = ", ".join(f"{name} {version}" for name, version in made["packages"].items())
    return "\n".join(
        [
            "## Lineage\n\nAll ancestors, with the first digits of the SHA-256 of their content:\n",
            "| stage | kind | source | digest |",
            "|---|---|---|---|",
            *rows,
            f"\nCode: revision `{made['revision'] or 'unknown'}`. Packages: {packages}.",
        ]
    )
