"""Validation of the labels of a round (Great Expectations) between people and training: labels that fail are
quarantined with reasons.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ratchet.components.data.personal_data import scrubbed
from ratchet.components.errors import GateError
from ratchet.components.labels.labels import Item, Label, to_line
from ratchet.tasks.data.expectations import Check
from ratchet.tasks.data.validation import run_checks

MAX_QUARANTINED = 0.02
"""Largest share of labels that may fail before a run stops, as the default of `data.max_quarantined`."""
CHECKS = [
    Check(says, "ExpectColumnValuesToBeInSet", column, {"value_set": [True]})
    for column, says in {
        "known": "the comparison is in the queue",
        "fits": "the order shows each of its answers once",
        "pseudonym": "the annotator is a pseudonym without personal data",
    }.items()
] + [Check("the seconds are a number from 0", "ExpectColumnValuesToBeBetween", "seconds", {"min_value": 0})]


def validated(items: Sequence[Item], labels: Sequence[Label], out: Path) -> list[Label]:
    """The labels that pass. `out` gets `validation.json` and `quarantined.jsonl` (failed labels, each with
    the expectations that it broke). After writing, raises `GateError` if more than a share `MAX_QUARANTINED`
    failed.
    """
    import pandas as pd

    if not labels:
        return []
    answers = {item.id: len(item.answers) for item in items}
    rows = [
        {
            "id": str(number),
            "known": label.item in answers,
            "fits": len(label.order) == answers.get(label.item, len(label.order)),
            "pseudonym": bool(label.annotator.strip()) and not scrubbed(label.annotator)[1],
            "seconds": label.seconds if math.isfinite(label.seconds) else -1.0,  # missing values would pass
        }
        for number, label in enumerate(labels)
    ]
    results = run_checks({"rows": pd.DataFrame(rows)}, CHECKS)["rows"]
    broke: dict[int, list[str]] = {}
    for result in results:
        for row in result["failed"]:
            broke.setdefault(int(row), []).append(result["says"])
    share = len(broke) / len(labels)
    report: dict[str, Any] = {
        "success": share <= MAX_QUARANTINED,
        "labels": len(labels),
        "quarantined": len(broke),
        "max_quarantined": MAX_QUARANTINED,
        "expectations": [{**result, "failed": len(result["failed"])} for result in results],
    }
    out.mkdir(parents=True, exist_ok=True)
    (out / "validation.json").write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    lines = [{"broke": reasons, **json.loads(to_line(labels[number]))} for number, reasons in broke.items()]
    (out / "quarantined.jsonl").write_text(
        "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines), encoding="utf-8"
    )
    if not report["success"]:
        most = Counter(reason for reasons in broke.values() for reason in reasons).most_common(3)
        raise GateError(
            f"validation of the labels stopped the run: {len(broke)} of {len(labels)} ({share:.1%}) failed, "
            f"at most {MAX_QUARANTINED:.1%} allowed; most often: "
            + "; ".join(f"{says} ({number})" for says, number in most)
            + f". See {out / 'quarantined.jsonl'}; `ratchet label RUN --forget NAME` removes their labels"
        )
    return [label for number, label in enumerate(labels) if number not in broke]
