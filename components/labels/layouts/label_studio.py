"""Layout `label_studio`: Label Studio's exports "JSON", "JSON_MIN" and "CSV"; we write "JSON".

"JSON" is a list of tasks. A task has `id`, `data` and `annotations`; an annotation has `completed_by`,
`lead_time` (seconds), `created_at`, `was_cancelled` (skipped) and `result`, a list of which these are read: a
`pairwise` with `selected` left or right (the first or second answer), `choices` "tie" or "both_bad", and a
`textarea` (reason). Of several pairwise results the one called "preference", or else the first, is the
choice, and the others are aspects. `choices` called "verdict" go before that choice, others count without
one only. The other two exports are rows, one an annotation, with the task's data
and the results by their names, without skipped annotations; there, a text is the reason if its name is
"reason".

What Label Studio does not know (pseudonym, time, order, aspects without a difference) is in the `meta` of an
annotation's first result, the one place that it neither refuses nor drops; a skip has an empty reason for it.
An annotation has no `completed_by`, since an import refuses users that it does not have. Without our `meta`
the left answer counts as shown first. Pairs only.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from ratchet.components.errors import DataError
from ratchet.components.labels.labels import Item, Label, from_row
from ratchet.components.labels.layouts.common import (
    ANSWER,
    PROMPTS,
    Decoded,
    Names,
    fields_of,
    pseudonym,
    records,
)

SIDES, OWN, QUESTION, VERDICT = ("left", "right"), "ratchet", "preference", "verdict"
TIES = {"tie": "tie", "equal": "tie", "both_bad": "both_bad", "both bad": "both_bad"}
HINT = 'Export as "JSON", "JSON_MIN" or "CSV"'
REASON = "reason"
ROW = ("annotator", "annotation_id", "created_at", "updated_at", "lead_time")
"""Columns of every row of the exports JSON_MIN and CSV."""
OTHER = (*ROW, "id", "agreement", "history")
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
    made = []
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
                        "was_cancelled": label.verdict == "skip",
                        "lead_time": label.seconds,
                        "created_at": label.time,
                        "result": _result(label),
                    }
                    for label in labels
                    if label.item == item.id
                ],
                "predictions": [],
            }
        )
    return made


def decode(content: Any, where: str, names: Names) -> Decoded:
    """Items and labels of tasks or rows. `DataError` for another layout or a result that says nothing."""
    items, labels = list[Item](), list[Label]()
    content = _tasks(content) if is_rows(content) else content
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


def is_rows(content: Any) -> bool:
    """Whether the content is that of an export JSON_MIN or CSV."""
    first = content[0] if isinstance(content, list) and content else None
    return isinstance(first, Mapping) and set(ROW) <= set(first)


def _tasks(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Tasks with annotations from rows."""
    found: dict[str, dict[str, Any]] = {}
    for row in rows:
        values = {name: _value(name, value) for name, value in row.items() if name not in OTHER}
        results = {name: part for name, value in values.items() if (part := _part(name, value)) is not None}
        data = {name: value for name, value in values.items() if name not in results}
        task = found.setdefault(str(row.get("id")), {"id": row.get("id"), "data": data, "annotations": []})
        if row["annotation_id"] not in (None, ""):
            about = {"completed_by": row["annotator"], "result": list(results.values())}
            about |= {name: row[name] for name in ("created_at", "lead_time")}
            task["annotations"].append(about)
    return list(found.values())


def _value(name: str, cell: Any) -> Any:
    """The value of a cell: in a CSV file messages, texts, pairwise results and our own data are JSON. An
    answer is a text, whatever it looks like.
    """
    if not isinstance(cell, str) or cell[:1] not in ("[", "{") or ANSWER.fullmatch(name):
        return cell
    try:
        value = json.loads(cell)
    except ValueError:
        return cell
    first = value[0] if isinstance(value, list) and value else value
    keys = set(first) if isinstance(first, Mapping) else set()
    known = "role" in keys if name in PROMPTS else keys & {"role", "selected"} or keys == {"text"}
    return value if known or name == OWN else cell


def _part(name: str, value: Any) -> dict[str, Any] | None:
    """The result that a row's value stands for; None if it is data of the task."""
    if name in PROMPTS or ANSWER.fullmatch(name):
        return None
    if isinstance(value, list) and value and isinstance(value[0], Mapping) and "selected" in value[0]:
        return {"from_name": name, "type": "pairwise", "value": value[0]}
    if isinstance(value, str) and value.lower() in TIES:
        return {"from_name": name, "type": "choices", "value": {"choices": [value]}}
    if name == REASON and value:
        value = value if isinstance(value, Mapping) else {"text": value}
        return {"from_name": name, "type": "textarea", "value": value}
    return None


def _result(label: Label) -> list[dict[str, Any]]:
    def part(name: str, kind: str, value: dict[str, Any]) -> dict[str, Any]:
        to = name if kind == "pairwise" else "prompt"  # its page shows no other choice as made
        return {"from_name": name, "to_name": to, "type": kind, "value": value, "origin": "manual"}

    made = []
    if label.choice is not None:
        made.append(part(QUESTION, "pairwise", {"selected": SIDES[label.choice]}))
    elif label.verdict != "skip":
        made.append(part(VERDICT, "choices", {"choices": [label.verdict]}))
    if label.reason or not made:
        made.append(part(REASON, "textarea", {"text": [label.reason] if label.reason else []}))
    own = {name: getattr(label, name) for name in ("annotator", "time")}
    made[0]["meta"] = {OWN: own | {"order": list(label.order), "aspects": dict(label.aspects)}}
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
    reason, ticked = "", dict[str, str]()
    for part in parts:
        kind, value = part.get("type"), part.get("value") or {}
        if kind == "choices":
            name, said = str(part.get("from_name")), [one.lower() for one in value.get("choices", ())]
            ticked.update((name, TIES[one]) for one in said if one in TIES)
        elif kind == "textarea":
            text = value.get("text") or ()
            reason = text if isinstance(text, str) else "\n".join(text)
    if annotation.get("was_cancelled"):
        verdict = "skip"
    elif VERDICT in ticked or choice is None:
        verdict = ticked.get(VERDICT) or next(iter(ticked.values()), None)
    else:
        verdict = "choice"
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
    own = next((part["meta"][OWN] for part in parts if OWN in (part.get("meta") or {})), {})
    return from_row(Label, row | own)
