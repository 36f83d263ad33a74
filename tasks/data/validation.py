"""Data validation between curation and training (Great Expectations): failing groups are quarantined with
reasons.

Great Expectations 1.x checks columns computed by `components/data/statistics.py`. Per-row expectations
quarantine groups; per-split expectations stop the run. The package is imported in functions, since that takes
seconds; its context is ephemeral, and only the Data Docs are kept.
"""

from __future__ import annotations

import json
import logging
import os
import shutil
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ratchet.components.data.groups import read_groups, write_groups
from ratchet.components.data.parquet import read_parquet
from ratchet.components.data.statistics import kind_of
from ratchet.components.errors import DataError, GateError, SourceError
from ratchet.components.recipes.conform import conform
from ratchet.components.recipes.sections import Data
from ratchet.tasks.data.expectations import Check, expectations

if TYPE_CHECKING:
    import pandas as pd

    from ratchet.components.stages.job import Job
    from ratchet.components.types import Group


def validate(job: Job) -> dict[str, Any]:
    """Stage `validate`: from the drafts to the curated data."""
    report = validate_data(job.path("drafts"), job.options["section"], job.work.product)
    broke = {
        f"broke: {check['says']}": check["failed"]
        for check in report["expectations"]
        if check["of"] == "rows" and check["failed"]
    }
    return {"counts": {"groups": report["groups"], "quarantined": report["quarantined"], **broke}, **report}


def validate_data(
    curated: Path, section: Mapping[str, Any], out: Path, *, data_docs: bool = True
) -> dict[str, Any]:
    """Validate the output of `curate`, write passing groups to `out`, and return the report.

    `out` gets `<split>.parquet`, `statistics.parquet`, `quarantined.jsonl` (groups with failed expectations),
    `validation.json` and `data_docs/`. After writing, raises `GateError` if more than a share
    `max_quarantined` of the groups failed, a split is empty, or a per-split expectation failed. `DataError`
    for damaged files.
    """
    import pandas as pd

    data: Data = conform(Data, section, "data")
    frame = pd.DataFrame(read_parquet(_present(curated / "statistics.parquet")))
    splits = list(dict.fromkeys(frame["split"])) if len(frame) else []
    if not splits:
        raise DataError(f"{curated / 'statistics.parquet'} contains no groups to validate")
    if missing := [name for name in data.splits or () if name not in splits]:
        raise GateError(f"split {missing[0]!r} of the recipe is not in {curated}; it has {splits}")
    groups = {name: read_groups(curated / f"{name}.parquet") for name in splits}
    for name, members in groups.items():
        if len(members) != int((frame["split"] == name).sum()):
            raise DataError(
                f"{curated / name}.parquet has {len(members)} groups, statistics.parquet has "
                f"{int((frame['split'] == name).sum())}; curate again"
            )
    wanted = {"sft": 1, "reward": 2, "gold": 2, "pairs": 2, "labelled": 1}
    frame["trajectories_fit"] = [
        count == wanted.get(kind, min(count, 1))
        for kind, count in zip(frame["kind"], frame["trajectories"], strict=True)
    ]
    by_split = split_frame(frame)
    checks = expectations(data)
    out.mkdir(parents=True, exist_ok=True)
    results = run_checks(
        {"rows": frame, "splits": by_split}, checks, out / "data_docs" if data_docs else None
    )

    broken: dict[str, list[str]] = defaultdict(list)
    for result in results["rows"]:
        for row in result["failed"]:
            broken[row].append(result["says"])
    kept = {
        name: [g for i, g in enumerate(members) if f"{name}/{i}" not in broken]
        for name, members in groups.items()
    }
    _write_quarantine(out / "quarantined.jsonl", groups, broken)
    for name, members in kept.items():
        write_groups(out / f"{name}.parquet", members)
    for file in ("quarantine.jsonl", "summary.json", "statistics.parquet"):
        if (curated / file).exists():
            shutil.copyfile(curated / file, out / file)

    limit = data.max_quarantined
    share = len(broken) / len(frame)
    stops = [_stop(result, by_split) for result in results["splits"] if not result["success"]]
    stops += [f"split {name!r} is empty after quarantine" for name, members in kept.items() if not members]
    if share > limit:
        worst = Counter(says for reasons in broken.values() for says in reasons).most_common(3)
        stops.insert(
            0,
            f"{len(broken)} of {len(frame)} groups ({share:.1%}) failed, at most {limit:.1%} allowed; "
            "most often: " + "; ".join(f"{says} ({number})" for says, number in worst),
        )
    report = {
        "success": not stops,
        "stops": stops,
        "groups": len(frame),
        "quarantined": len(broken),
        "quarantined_share": round(share, 6),
        "max_quarantined": limit,
        "splits": {
            name: {"groups": len(members), "quarantined": len(groups[name]) - len(members)}
            for name, members in kept.items()
        },
        "expectations": [
            {k: v for k, v in r.items() if k != "failed"} | {"failed": len(r["failed"])}
            for of in ("rows", "splits")
            for r in results[of]
        ],
        "data_docs": "data_docs/index.html" if data_docs else None,
    }
    (out / "validation.json").write_text(
        json.dumps(report, indent=1, ensure_ascii=False) + "\n", encoding="utf-8"
    )
    if stops:
        raise GateError(
            f"data validation of {curated} stopped the run: {' | '.join(stops)}. "
            f"See {out / 'quarantined.jsonl'} and {out / 'validation.json'}"
        )
    return report


def split_frame(frame: pd.DataFrame) -> pd.DataFrame:
    """One row per split: number of groups and topics (None without topics), and the largest topic's share."""
    import pandas as pd

    rows = []
    for name, part in frame.groupby("split", sort=False):
        topics = part["topic"].dropna().value_counts()
        rows.append(
            {
                "id": name,
                "kind": kind_of(str(name)),
                "groups": len(part),
                "topics": float(len(topics)) or None,
                "max_topic_share": float(topics.iloc[0]) / len(part) if len(topics) else None,
            }
        )
    return pd.DataFrame(rows)


def run_checks(
    tables: Mapping[str, pd.DataFrame], checks: list[Check], docs: Path | None = None
) -> dict[str, list[dict[str, Any]]]:
    """Run each check on its table (`of`); tables have a column `id`. Returns one result per check:
    description, success, and ids of failed rows. With `docs`, Data Docs are built in that folder.
    """
    os.environ.setdefault("GX_ANALYTICS_ENABLED", "false")
    import great_expectations as gx
    import great_expectations.expectations as gxe

    logging.getLogger("great_expectations").setLevel(logging.WARNING)  # it logs every folder it creates
    context = gx.get_context(mode="ephemeral")
    context.variables.progress_bars = {"globally": False}  # pyright: ignore[reportAttributeAccessIssue]
    source = context.data_sources.add_pandas(name="curated")
    results: dict[str, list[dict[str, Any]]] = {}
    for name, frame in tables.items():
        data = source.add_dataframe_asset(name=name).add_batch_definition_whole_dataframe("all")
        suite = context.suites.add(
            gx.ExpectationSuite(
                name=name,
                expectations=[
                    getattr(gxe, check.expectation)(
                        column=check.column,
                        **check.arguments,
                        notes=check.says,
                        meta={"number": number},
                        severity="warning" if check.of == "rows" else "critical",
                    )
                    for number, check in enumerate(checks)
                    if check.of == name
                ],
            )
        )
        definition = context.validation_definitions.add(
            gx.ValidationDefinition(name=name, data=data, suite=suite)
        )
        run = context.checkpoints.add(
            gx.Checkpoint(
                name=name,
                validation_definitions=[definition],
                result_format={"result_format": "COMPLETE", "unexpected_index_column_names": ["id"]},
            )
        ).run(batch_parameters={"dataframe": frame})
        (outcome,) = run.run_results.values()
        plain: Any = outcome.to_json_dict()  # contains numpy values, which json cannot serialise
        results[name] = [_result(one, checks) for one in plain["results"]]
        results[name].sort(key=lambda result: result.pop("number"))
    if docs is not None:
        _write_docs(context, docs)
    return results


def _result(outcome: Mapping[str, Any], checks: list[Check]) -> dict[str, Any]:
    number = outcome["expectation_config"]["meta"]["number"]
    if (outcome.get("exception_info") or {}).get("raised_exception"):
        raise DataError(
            f"{checks[number].says!r} could not be evaluated: "
            f"{outcome['exception_info']['exception_message']}"
        )
    failed = sorted(str(entry["id"]) for entry in outcome["result"].get("unexpected_index_list") or ())
    return {**asdict(checks[number]), "success": bool(outcome["success"]), "failed": failed, "number": number}


def _stop(result: Mapping[str, Any], by_split: pd.DataFrame) -> str:
    """Message of a failed per-split expectation: expected and found."""
    values = by_split.set_index("id")[result["column"]]
    least, most = (result["arguments"].get(end) for end in ("min_value", "max_value"))
    wanted = f"at least {least:g}" if least is not None else f"at most {most:g}"
    return f"{result['says']}: expected {wanted}, got " + ", ".join(
        f"{values[name]:.3g} in {name!r}" for name in result["failed"]
    )


def _write_docs(context: Any, docs: Path) -> None:
    docs.mkdir(parents=True, exist_ok=True)
    context.add_data_docs_site(
        "kept",
        {
            "class_name": "SiteBuilder",
            "site_index_builder": {"class_name": "DefaultSiteIndexBuilder"},
            "store_backend": {
                "class_name": "TupleFilesystemStoreBackend",
                "base_directory": str(docs.resolve()),
            },
        },
    )
    context.build_data_docs(site_names=["kept"])


def _present(file: Path) -> Path:
    if not file.is_file():
        raise SourceError(f"{file} does not exist; run curation first")
    return file


def _write_quarantine(
    path: Path, groups: Mapping[str, Sequence[Group]], broken: Mapping[str, list[str]]
) -> None:
    lines = []
    for name, members in groups.items():
        for number, group in enumerate(members):
            if reasons := broken.get(f"{name}/{number}"):
                lines.append(
                    json.dumps(
                        {
                            "split": name,
                            "group": number,
                            "prompt_id": group.prompt.id,
                            "broke": reasons,
                            "prompt": list(group.prompt.messages),
                            "completions": [list(t.messages) for t in group.trajectories],
                        },
                        ensure_ascii=False,
                    )
                    + "\n"
                )
    path.write_text("".join(lines), encoding="utf-8", errors="replace")
