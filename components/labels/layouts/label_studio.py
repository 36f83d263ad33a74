"""Layout `label_studio`: tasks with annotations as Label Studio's export "JSON" writes them (not JSON-MIN).

A task has `id`, `data` and `annotations`; an annotation has `completed_by`, `lead_time` (seconds),
`created_at`, `was_cancelled` (skipped) and `result`, a list of which these are read: a `pairwise` with
`selected` left or right (the first or second answer), `choices` "tie" or "both_bad", and a `textarea`
(reason). Of several pairwise results the one called "preference", or else the first, is the choice, and the
others are aspects. An export adds to an annotation what Label Studio does not know under `ratchet`
(pseudonym, order, aspects without a difference), which is read back from there; without it the left answer
counts as shown first. Pairs only.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from ratchet.components.errors import DataError
from ratchet.components.labels.labels import Item, Label, from_row
from ratchet.components.labels.layouts.common import Decoded, Names, fields_of, pseudonym, records

SIDES, OWN, QUESTION = ("left", "right"), "ratchet", "preference"
TIES = {"tie": "tie", "equal": "tie", "both_bad": "both_bad", "both bad": "both_bad"}
HINT = 'Export as "JSON", not as JSON-MIN or CSV'
CONFIG = """<View>
  <Paragraphs name="prompt" value="$messages" layout="dialogue" nameKey="role" textKey="content"/>
  <Pairwise name="preference" toName="answer1,answer2"/>
  <Text name="answer1" value="$answer1"/>
  <Text name="answer2" value="$answer2"/>
  <Choices name="verdict" toName="prompt"><Choice value="tie"/><Choice value="both_bad"/></Choices>
  <TextArea name="reason" toName="prompt"/>
</View>
"""
"""A labelling interface for exported tasks."""


def encode(items: Sequence[Item], labels: Sequence[Label]) -> list[dict[str, Any]]:
    """The tasks. `DataError` for an item of more than two answers."""
    made, people = [], sorted({label.annotator for label in labels})
    for number, item in enumerate(items, start=1):
        if len(item.answers) != 2:
            raise DataError(f"item {item.id}: Label Studio compares two answers, got {len(item.answers)}")
        about = {k: v for k, v in asdict(item).items() if k not in ("prompt", "answers")}
        made.append(
            {
                "id": number,
                "data": {
                    "messages": list(item.prompt),
                    "answer1": item.answers[0],
                    "answer2": item.answers[1],
                    OWN: about,
                },
                "annotations": [
                    {
                        "completed_by": people.index(label.annotator) + 1,
                        "was_cancelled": label.verdict == "skip",
                        "lead_time": label.seconds,
                        "created_at": label.time,
                        "result": _result(label),
                        OWN: {
                            "annotator": label.annotator,
                            "order": list(label.order),
                            "aspects": dict(label.aspects),
                        },
                    }
                    for label in labels
                    if label.item == item.id
                ],
                "predictions": [],
            }
        )
    return made


def decode(content: Any, where: str, names: Names) -> Decoded:
    """Items and labels of the tasks. `DataError` for another layout or a result that says nothing."""
    items, labels = list[Item](), list[Label]()
    for number, task in enumerate(
        records(content, where, ("data", "annotations"), "a Label Studio export", HINT)
    ):
        at, data = f"{where}, task {task.get('id', number)}", task["data"]
        prompt, answers = fields_of({k: v for k, v in data.items() if k != OWN}, names, at)
        if len(answers) != 2:
            raise DataError(f"{at}: expected two answers, got {', '.join(answers)}")
        texts = [data[name] for name in answers]
        about = {"id": str(task.get("id", number))} | (data.get(OWN) or {})
        items.append(from_row(Item, {**about, "prompt": prompt, "answers": texts}))
        for annotation in task["annotations"]:
            labels.append(_label(annotation, items[-1].id, names, at))
    return items, labels


def _result(label: Label) -> list[dict[str, Any]]:
    def part(name: str, kind: str, value: dict[str, Any]) -> dict[str, Any]:
        to = "answer1,answer2" if kind == "pairwise" else "prompt"
        return {"from_name": name, "to_name": to, "type": kind, "value": value, "origin": "manual"}

    made = []
    if label.choice is not None:
        made.append(part(QUESTION, "pairwise", {"selected": SIDES[label.choice]}))
    elif label.verdict != "skip":
        made.append(part("verdict", "choices", {"choices": [label.verdict]}))
    if label.reason:
        made.append(part("reason", "textarea", {"text": [label.reason]}))
    better = {name: value for name, value in label.aspects.items() if value >= 0}
    return made + [part(name, "pairwise", {"selected": SIDES[value]}) for name, value in better.items()]


def _label(annotation: Mapping[str, Any], item: str, names: Names, at: str) -> Label:
    person = annotation.get("completed_by")
    if isinstance(person, Mapping):
        person = person.get("id", person.get("email"))
    parts = annotation.get("result") or ()
    picked = {
        str(part.get("from_name")): SIDES.index(part["value"]["selected"])
        for part in parts
        if part.get("type") == "pairwise" and (part.get("value") or {}).get("selected") in SIDES
    }
    question = names.question or (QUESTION if QUESTION in picked else next(iter(picked), None))
    choice = picked.pop(str(question), None)
    verdict = "skip" if annotation.get("was_cancelled") else "choice" if choice is not None else None
    reason = ""
    for part in parts:
        kind, value = part.get("type"), part.get("value") or {}
        if kind == "choices":
            verdict = next((TIES[one] for one in value.get("choices", ()) if one in TIES), verdict)
        elif kind == "textarea":
            reason = (
                "\n".join(value.get("text", ())) if isinstance(value.get("text"), list) else value["text"]
            )
    if verdict is None:
        raise DataError(
            f"{at}: the annotation of {pseudonym(person)} has no pairwise result (left or right) and no "
            f"choice {' or '.join(TIES)}; skip it in Label Studio, or name its question"
        )
    row = {
        "item": item,
        "annotator": pseudonym(person),
        "choice": choice if verdict == "choice" else None,
        "verdict": verdict,
        "order": [0, 1],
        "seconds": float(annotation.get("lead_time") or 0.0),
        "reason": reason,
        "aspects": picked,
        "time": annotation.get("created_at") or "",
    }
    return from_row(Label, row | (annotation.get(OWN) or {}))
