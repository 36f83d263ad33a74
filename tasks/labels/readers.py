"""Which runs read the labels of an annotator."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from ratchet.tasks.tracking.outcome import outcome, run_files


@dataclass(frozen=True)
class Reader:
    """A run whose groups have labels of the annotator; `models`: its stages that made weights after reading
    data, with their registered versions.
    """

    run: str
    labels: int
    models: tuple[str, ...]


def readers(home: Path, annotator: str) -> list[Reader]:
    """Runs under a home with groups that carry labels of the annotator, newest last."""
    found = []
    for file in run_files(home):
        run = file.parent
        counts = [
            count_labels(path.resolve(), annotator)
            for path in sorted((run / "stages").glob("[!.]*/*.parquet"))
        ]
        if labels := max(counts, default=0):
            known = outcome(run)
            models = tuple(
                f"{one['name']} ({known['registered'][one['name']]})"
                if one["name"] in known["registered"]
                else one["name"]
                for one in known["stages"]
                if one["made"] and _trained(run / "stages" / one["name"])
            )
            found.append(Reader(run.name, labels, models))
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
    mark = json.dumps({"annotator": annotator}, ensure_ascii=False)[1:-1]
    return sum(
        mark in meta and json.loads(meta).get("prompt", {}).get("annotator") == annotator
        for meta, index in zip(table["meta"].to_pylist(), table["index"].to_pylist(), strict=True)
        if index <= 0
    )


def _trained(folder: Path) -> bool:
    from ratchet.components.storage.store import read_manifest

    manifest = read_manifest(folder) or {}
    does = (manifest.get("made_with") or {}).get("does", "")
    return manifest.get("kind") == "weights" and does not in ("fetch_model", "make_tiny", "gold")
