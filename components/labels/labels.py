"""Records of human preference labels: comparisons to judge (`Item`) and judgements (`Label`).

Both are stored as JSON Lines, one object a line: `items.jsonl` and `labels.jsonl` of a queue folder. Files
are only appended to; a label that its annotator undid stays in the file, followed by a `Retraction`.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, Literal, TypeVar, get_args

from ratchet.components.errors import DataError, SourceError
from ratchet.components.types import Message

Verdict = Literal["choice", "tie", "both_bad", "skip"]
VERDICTS = get_args(Verdict)
ROLES = ("system", "user", "assistant", "tool")
ITEMS, LABELS = "items.jsonl", "labels.jsonl"
"""File names of a queue folder."""
SCORE, WEIGHT = "people", "label_weight"
"""Columns of judged answers, which annotators such as `rewards.people` read: score, weight of its pairs."""


@dataclass(frozen=True)
class Item:
    """One comparison: a prompt and two or more answers to it.

    `planted`: index of the answer that is known to be better, None for an ordinary item. `repeat_of`: id of
    the item whose comparison this one shows again to the same annotator. `round` and `policy`: the online
    round and the digest of the weights that wrote the answers. `prompt_id`, `source` and `answer` are those
    of the prompt (`ratchet.components.types.Prompt`).

    Raises `DataError` for fewer than two answers, a message without role and content, or a `planted` index
    that is no answer.
    """

    id: str
    prompt: Sequence[Message]
    answers: Sequence[str]
    planted: int | None = None
    repeat_of: str | None = None
    round: int | None = None
    policy: str = ""
    prompt_id: str = ""
    source: str = ""
    answer: str | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.id, str) or not self.id:
            raise DataError(f"item: expected a text as id, got {self.id!r}")
        if len(self.answers) < 2 or not all(isinstance(one, str) for one in self.answers):
            raise DataError(f"item {self.id}: expected two or more answers as texts, got {self.answers!r}")
        for message in self.prompt:
            if message.get("role") not in ROLES or not isinstance(message.get("content"), str):
                raise DataError(f"item {self.id}: a message needs a role and a text content, got {message!r}")
        if self.planted is not None and self.planted not in range(len(self.answers)):
            raise DataError(
                f"item {self.id}: planted is {self.planted!r}, expected an index below {len(self.answers)}"
            )


@dataclass(frozen=True)
class Label:
    """One annotator's judgement of an item.

    `choice`: index in `Item.answers` of the best answer, None unless `verdict` is "choice". `order`: indices
    of the answers as they were shown, from left to right. `seconds`: from showing the item to the judgement.
    `aspects`: name of an aspect to the index of the answer that is better in it, -1 for no difference.
    `time`: ISO 8601 in UTC. `annotator` is a pseudonym.

    Raises `DataError` for an unknown verdict, a choice that is not among `order`, or a `choice` without the
    verdict "choice".
    """

    item: str
    annotator: str
    choice: int | None
    verdict: Verdict
    order: Sequence[int]
    seconds: float
    reason: str = ""
    aspects: Mapping[str, int] = field(default_factory=dict)
    time: str = ""

    def __post_init__(self) -> None:
        where = f"label of {self.annotator} on item {self.item}"
        if self.verdict not in VERDICTS:
            raise DataError(f"{where}: verdict is {self.verdict!r}, expected one of {', '.join(VERDICTS)}")
        if sorted(self.order) != list(range(len(self.order))):
            raise DataError(f"{where}: order is {self.order!r}, expected each index of an answer once")
        if (self.verdict == "choice") != (self.choice is not None):
            raise DataError(f"{where}: choice is {self.choice!r} with the verdict {self.verdict!r}")
        if self.choice is not None and self.choice not in self.order:
            raise DataError(f"{where}: choice is {self.choice!r}, expected one of {list(self.order)}")


def item_of(label: Label, items: Mapping[str, Item]) -> Item:
    """The item that a label judges, by its id. `DataError` if there is none, or if the label's order or
    aspects are not of its answers.
    """
    where = f"label of {label.annotator} on item {label.item!r}"
    item = items.get(label.item)
    if item is None:
        raise DataError(f"{where}: there is no such item; pass the items of the same queue")
    if len(label.order) != len(item.answers):
        raise DataError(f"{where}: order is {list(label.order)} for {len(item.answers)} answers")
    if any(index not in range(-1, len(item.answers)) for index in label.aspects.values()):
        raise DataError(f"{where}: aspects are {dict(label.aspects)} for {len(item.answers)} answers")
    return item


@dataclass(frozen=True)
class Retraction:
    """The retraction of an annotator's label of an item, stored as `{"retracts": item, ...}`."""

    retracts: str
    annotator: str
    time: str = ""


Record = TypeVar("Record", Item, Label, Retraction)


def to_line(record: Item | Label | Retraction) -> str:
    """One line of JSON without a line break inside; the line end is included."""
    return json.dumps(asdict(record), ensure_ascii=False) + "\n"


def from_row(kind: type[Record], row: Mapping[str, Any]) -> Record:
    """The record of a JSON object. Unknown keys are ignored. `DataError` if a field is missing."""
    try:
        known = {one.name for one in fields(kind)}
        return kind(**{name: value for name, value in row.items() if name in known})
    except (TypeError, AttributeError) as error:
        raise DataError(f"not a {kind.__name__.lower()}: {error}; got {str(row)[:200]}") from error


def read_items(path: Path) -> list[Item]:
    """The items of a file or queue folder, in order. `DataError` for an invalid line or an id used twice."""
    found: dict[str, Item] = {}
    for where, row in _rows(path / ITEMS if path.is_dir() else path):
        item = _located(Item, row, where)
        if item.id in found:
            raise DataError(f"{where}: the id {item.id!r} is used twice; expected one item an id")
        found[item.id] = item
    return list(found.values())


def read_labels(path: Path) -> list[Label]:
    """The standing labels of a file or queue folder, in order: without retracted ones, and of several labels
    of one annotator on one item only the last. An absent file has no labels.
    """
    path = path / LABELS if path.is_dir() else path
    return standing(read_history(path)) if path.exists() else []


def read_history(path: Path) -> list[Label | Retraction]:
    """Every line of a label file, in order, without an incomplete last one (see `repair`). `DataError` for an
    invalid line.
    """
    return [
        _located(Retraction, row, where) if "retracts" in row else _located(Label, row, where)
        for where, row in _rows(Path(path), incomplete=True)
    ]


def standing(history: Iterable[Label | Retraction]) -> list[Label]:
    """The labels that were neither retracted nor replaced, in the order of their lines."""
    found: dict[tuple[str, str], Label] = {}
    for one in history:
        if isinstance(one, Retraction):
            found.pop((one.retracts, one.annotator), None)
        else:
            found.pop((one.item, one.annotator), None)
            found[one.item, one.annotator] = one
    return list(found.values())


def append_durably(path: Path, records: Iterable[Item | Label | Retraction]) -> None:
    """Append records and return only after they are on disk (fsync of the file, and of its folder if new). If
    writing fails, such as on a full disk, the file is as before.
    """
    path, new = Path(path), not Path(path).exists()
    path.parent.mkdir(parents=True, exist_ok=True)
    text = "".join(map(to_line, records)).encode()
    with path.open("ab", buffering=0) as file:
        size = file.seek(0, os.SEEK_END)
        try:
            while text:
                text = text[file.write(text) :]
            os.fsync(file.fileno())
        except OSError:
            file.truncate(size)
            raise
    if new:
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def repair(path: Path) -> None:
    """End the last line of a file, or remove it if it is incomplete: a process died while writing it, so it
    was never acknowledged.
    """
    content = path.read_bytes() if path.exists() else b""
    whole = content.rfind(b"\n") + 1
    if whole < len(content):
        with path.open("r+b") as file:
            if _is_json(content[whole:]):
                file.seek(0, os.SEEK_END)
                file.write(b"\n")
            else:
                file.truncate(whole)
            file.flush()
            os.fsync(file.fileno())


def _is_json(text: bytes) -> bool:
    try:
        json.loads(text)
    except ValueError:
        return False
    return True


def _rows(path: Path, incomplete: bool = False) -> Iterable[tuple[str, Mapping[str, Any]]]:
    """(location, row) of every line; with `incomplete`, a last line without an end may be cut off."""
    if not path.is_file():
        raise SourceError(f"there is no file {path}")
    *lines, last = path.read_bytes().split(b"\n")
    lines += [] if incomplete and not _is_json(last) else [last]
    for number, line in enumerate(lines, start=1):
        if line.strip():
            try:
                row = json.loads(line)
            except ValueError as error:
                raise DataError(f"{path}, line {number}: not valid JSON: {error}") from error
            if not isinstance(row, dict):
                raise DataError(f"{path}, line {number}: expected a JSON object, got {str(row)[:80]}")
            yield f"{path}, line {number}", row


def _located(kind: type[Record], row: Mapping[str, Any], where: str) -> Record:
    try:
        return from_row(kind, row)
    except DataError as error:
        raise DataError(f"{where}: {error}") from error
