"""Layout `argilla`: records as `dataset.records.to_json()` of Argilla 2 writes them.

A record has `id`, `fields`, `metadata`, `suggestions`, `vectors` and `responses`: question → list of `{value,
user_id}`. It does not say which responses are drafts or discarded (some versions add `status`);
`to_list(flatten=True)` does, with the fields beside `id` and `QUESTION.responses`, `.users` and `.status`,
and is read too, also as rows of a Parquet file (`to_datasets()`). A draft is left out, a discarded response
is a skip. The question is a label question whose labels are the names of the answers' fields, "tie",
"both_bad" and "skip", or a ranking question of those fields, where a shared first rank is a tie; a text
question "reason" has the reason. Argilla knows no order, seconds or time of a response: an import has the
order 0, 1, ... and 0 seconds. What an export cannot say in Argilla's terms is in the metadata `ratchet`, as
JSON, and read back from there.
"""

from __future__ import annotations

import itertools
import json
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from ratchet.components.errors import DataError
from ratchet.components.labels.labels import Item, Label, from_row
from ratchet.components.labels.layouts.common import Decoded, Names, fields_of, pseudonym, records

QUESTION, OWN = "preference", "ratchet"
NAMESPACE = uuid.UUID("6f1c3ad0-6a53-4c53-9d0e-2b6a2f0a7f10")
VERDICTS = {"tie": "tie", "both_bad": "both_bad", "both bad": "both_bad", "skip": "skip"}
HINT = "Export with `dataset.records.to_json(path)`, or write `to_list(flatten=True)` as JSON"
REASON, RESPONSES = "reason", ".responses"


def encode(items: Sequence[Item], labels: Sequence[Label]) -> list[dict[str, Any]]:
    """The records: fields `prompt` (messages, a chat field) and `answer_1`, `answer_2`, ..."""
    made = []
    for item in items:
        own = [label for label in labels if label.item == item.id]
        about = {k: v for k, v in asdict(item).items() if k not in ("id", "prompt", "answers")}
        stored = {_user(one.annotator): {k: v for k, v in asdict(one).items() if k != "item"} for one in own}
        made.append(
            {
                "id": item.id,
                "fields": {"prompt": list(item.prompt)}
                | {f"answer_{i}": text for i, text in enumerate(item.answers, start=1)},
                "metadata": {OWN: json.dumps({"item": about, "labels": stored}, ensure_ascii=False)},
                "suggestions": {},
                "responses": {
                    QUESTION: [
                        {
                            "value": one.verdict if one.choice is None else f"answer_{one.choice + 1}",
                            "user_id": _user(one.annotator),
                        }
                        for one in own
                    ]
                },
                "vectors": {},
                "_server_id": None,
            }
        )
    return made


def decode(content: Any, where: str, names: Names) -> Decoded:
    """Items and labels of the records. `DataError` for another layout or a value that is no answer."""
    items, labels = list[Item](), list[Label]()
    content = [_nested(one) for one in content] if is_flat(content) else content
    for number, record in enumerate(
        records(content, where, ("fields", "responses"), "Argilla records", HINT)
    ):
        at = f"{where}, record {number}"
        prompt, answers = fields_of(record["fields"], names, at)
        own = _own(record, at)
        item = from_row(
            Item,
            {
                **own.get("item", {}),
                "id": str(record.get("id") or number),
                "prompt": prompt,
                "answers": [record["fields"][name] for name in answers],
            },
        )
        items.append(item)
        reasons = [one for one in record["responses"].get(REASON) or () if isinstance(one["value"], str)]
        for response in _responses(record["responses"], names, at):
            if response.get("status") in ("draft", "pending"):
                continue
            value = "skip" if response.get("status") == "discarded" else response.get("value")
            choice, verdict = _meaning(value, answers, at)
            user = str(response.get("user_id"))
            stored = own.get("labels", {}).get(user, {})
            reason = next((one["value"] for one in reasons if str(one.get("user_id")) == user), "")
            row = {
                "reason": reason,
                "annotator": pseudonym(user),
                "order": list(range(len(answers))),
                "seconds": 0.0,
            } | stored
            labels.append(from_row(Label, {**row, "item": item.id, "choice": choice, "verdict": verdict}))
    return items, labels


def is_flat(content: Any) -> bool:
    """Whether the content is a flattened list of records, as `to_list(flatten=True)` gives it."""
    first = content[0] if isinstance(content, list) and content else None
    return isinstance(first, Mapping) and any(str(key).endswith(RESPONSES) for key in first)


def _nested(record: Mapping[str, Any]) -> dict[str, Any]:
    """A record with `fields` and `responses` of a flattened one."""
    responses = {}
    for name in [key.removesuffix(RESPONSES) for key in record if key.endswith(RESPONSES)]:
        values, users, states = (
            record.get(f"{name}{RESPONSES}{part}") or () for part in ("", ".users", ".status")
        )
        responses[name] = [
            {"value": value, "user_id": user, "status": state}
            for value, user, state in itertools.zip_longest(values, users, states)
        ]
    fields = {
        key: value for key, value in record.items() if "." not in key and key not in ("id", "_server_id", OWN)
    }
    return {
        "id": record.get("id"),
        "fields": fields,
        "metadata": {OWN: record.get(OWN)},
        "responses": responses,
    }


def _user(annotator: str) -> str:
    """An Argilla user id of a pseudonym, which is kept if it is a UUID."""
    try:
        return str(uuid.UUID(annotator))
    except ValueError:
        return str(uuid.uuid5(NAMESPACE, annotator))


def _own(record: Mapping[str, Any], at: str) -> Mapping[str, Any]:
    text = (record.get("metadata") or {}).get(OWN)
    try:
        return json.loads(text) if text else {}
    except (TypeError, ValueError) as error:
        raise DataError(f"{at}: the metadata {OWN!r} is not JSON: {error}; remove it") from error


def _responses(responses: Mapping[str, Any], names: Names, at: str) -> list[Mapping[str, Any]]:
    given = [name for name, made in responses.items() if made and name != REASON]
    question = names.question or (
        QUESTION if QUESTION in responses else given[0] if len(given) == 1 else None
    )
    if question is None and not given:
        return []
    if question is None or (names.question and question not in responses and given):
        raise DataError(
            f"{at}: which question has the preference? There are responses to {', '.join(map(repr, given))}; "
            "name it"
        )
    return responses.get(question) or []


def _meaning(value: Any, answers: Sequence[str], at: str) -> tuple[int | None, str]:
    """(choice, verdict) of a label's or a ranking's value."""
    if isinstance(value, str) and value in answers:
        return answers.index(value), "choice"
    if isinstance(value, str) and value in VERDICTS:
        return None, VERDICTS[value]
    if isinstance(value, list) and value and all(isinstance(one, Mapping) and "rank" in one for one in value):
        best = min(one["rank"] for one in value)
        first = [one["value"] for one in value if one["rank"] == best]
        if set(first) <= set(answers):
            return (answers.index(first[0]), "choice") if len(first) == 1 else (None, "tie")
    raise DataError(
        f"{at}: the response is {str(value)[:120]!r}, expected one of {', '.join(map(repr, answers))}, "
        f"{', '.join(map(repr, VERDICTS))}, or a ranking of the answers"
    )
