"""Labels of a queue in and out of files, and the report on their quality; options of `ratchet label`."""

from __future__ import annotations

from pathlib import Path

import typer

from ratchet.components.errors import RecipeError
from ratchet.components.labels.labels import LABELS, append_durably, item_of, read_items, read_labels
from ratchet.components.labels.queue import Queue
from ratchet.components.labels.settings import make_queue
from ratchet.components.storage.store import write_atomic


def write_report(folder: Path, file: Path) -> None:
    """Write the report as `file`: HTML, or JSON by the ending .json."""
    from ratchet.components.labels.quality import measure
    from ratchet.components.labels.report import findings, headline, report, report_json

    if file.suffix not in (".html", ".json"):
        raise RecipeError(f"--report {file}: expected a file name that ends with .html or .json")
    items, labels = read_items(folder), read_labels(folder)
    write_atomic(file, (report_json if file.suffix == ".json" else report)(items, labels))
    measures = measure(items, labels)
    for line in (headline(measures), *findings(measures), f"written to {file}"):
        typer.echo(line)


def write_labels(folder: Path, file: Path, layout: str) -> None:
    """Write preference pairs as `file`, or items and labels in a layout of
    `ratchet.components.labels.exchange`.
    """
    from ratchet.components.labels.datasets import export
    from ratchet.components.labels.exchange import LAYOUTS, export_labels

    if layout not in ("pairs", *LAYOUTS):
        raise RecipeError(f"--layout {layout}: expected pairs or one of {', '.join(LAYOUTS)}")
    items, labels = read_items(folder), read_labels(folder)
    if layout == "pairs":
        counts = sorted(export(items, labels, file).items())
        typer.echo(f"{file}: " + ", ".join(f"{count} {name}" for name, count in counts))
        return typer.echo(f"a recipe reads it with `data: {{source: 'path:{file}'}}`")
    export_labels(file, items, labels, layout)  # pyright: ignore[reportArgumentType]
    typer.echo(f"{file}: {len(labels)} labels on {len(items)} items, layout {layout}")


def take_labels(folder: Path, file: Path) -> None:
    """Add the items and labels of `file`, of any layout, to a queue folder, which is made if there is none.
    Items and labels that the queue has stay as they are. `DataError`, before anything is written, if a label
    does not fit its item, or an item's id is that of another comparison in the queue.
    """
    from ratchet.components.labels.exchange import import_labels

    items, labels = import_labels(file)
    known_items = {item.id: item for item in items}
    for label in labels:
        item_of(label, known_items)
    make_queue(folder, items)
    with Queue(folder):  # no server writes meanwhile
        known = {(label.item, label.annotator) for label in read_labels(folder)}
        new = [label for label in labels if (label.item, label.annotator) not in known]
        append_durably(folder / LABELS, new)
    typer.echo(f"{folder}: {len(new)} labels added, {len(labels) - len(new)} were there already")
