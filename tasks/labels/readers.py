"""Which runs read the labels of an annotator."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from ratchet.components.storage.store import read_manifest
from ratchet.tasks.registry.lineage import of_product
from ratchet.tasks.tracking.outcome import outcome, run_files


@dataclass(frozen=True)
class Reader:
    """A run with labels of the annotator; `models`: stages whose weights descend from them, by version."""

    run: str
    labels: int
    models: tuple[str, ...]


def readers(home: Path, annotator: str) -> list[Reader]:
    """Runs under a home with groups that carry labels of the annotator, newest last."""
    found = []
    for file in run_files(home):
        run = file.parent
        labels = {
            folder.name: max(
                (count_labels(path.resolve(), annotator) for path in folder.glob("*.parquet")), default=0
            )
            for folder in sorted((run / "stages").glob("[!.]*"))
        }
        carriers = {name for name, count in labels.items() if count}
        if carriers:
            known = outcome(run)
            models = [
                one["name"]
                for one in known["stages"]
                if one["made"] and _learned_from(run / "stages" / one["name"], carriers)
            ]
            registered = known["registered"]
            titles = tuple(f"{name} ({registered[name]})" if name in registered else name for name in models)
            found.append(Reader(run.name, max(labels.values()), titles))
    return found


@cache
def count_labels(path: Path, annotator: str) -> int:
    """Labels of the annotator in a file of groups: by the prompt's `meta`, which curation keeps."""
    try:
        schema = pq.read_schema(path)
        if (schema.metadata or {}).get(b"layout") != b"groups":
            return 0
        table = pq.read_table(path, columns=["meta", "index"])
    except (pa.ArrowException, OSError):
        return 0
    quoted = json.dumps(annotator)
    return sum(
        quoted in meta and _has(json.loads(meta).get("prompt", {}), annotator)
        for meta, index in zip(table["meta"].to_pylist(), table["index"].to_pylist(), strict=True)
        if index <= 0
    )


def _has(meta: Mapping[str, Any], annotator: str) -> bool:
    return meta.get("annotator") == annotator or annotator in meta.get("annotators", ())


def _learned_from(product: Path, carriers: set[str]) -> bool:
    """Whether a product is weights that descend from a stage with labels of the annotator."""
    manifest = read_manifest(product) or {}
    return manifest.get("kind") == "weights" and bool(carriers & of_product(product)["stages"].keys())
