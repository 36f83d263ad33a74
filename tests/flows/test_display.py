"""Progress display: headlines, records, terminal and log output."""

from __future__ import annotations

import io
import re
import time
from collections import defaultdict
from pathlib import Path

import pytest
from rich.console import Console
from typer.testing import CliRunner

from ratchet.components.recipes.plan import Stage
from ratchet.components.types import Artifact
from ratchet.flows.cli import app
from ratchet.flows.commands.plan import print_plan
from ratchet.flows.commands.show import print_outcome
from ratchet.flows.display import Display, open_console
from ratchet.tasks.pipeline import Pipeline
from ratchet.tasks.tracking.counts import record_counts
from ratchet.tasks.tracking.outcome import numbers_of, stage_headline

DRAFTS = {
    "records": 7168,
    "groups": 3179,
    "parse: has 1 speaker, not two": 3151,
    "normalise: text tidied": 1290,
    "remove_broken: one character": 4,
    "scrub: link replaced": 15,
    "duplicates: duplicate": 1,
    "split: near duplicate": 0,
    "length: truncated": 1749,
    "build: not rated": 213,
    "build: prompt too long": 9,
    "build: uninformative rating": 771,
}
SELECT = {
    "groups before": 64,
    "ties": 3,
    "identical texts": 0,
    "margins under min_margin": 2,
    "groups after best_worst": 59,
}


def test_records_are_one_line_of_nonzero_counts() -> None:
    assert (
        record_counts({"counts": SELECT})
        == "64 groups before the selection; 3 ties; 2 margins under min_margin; 59 groups after best_worst"
    )
    assert record_counts({"counts": DRAFTS}) == (
        "7,168 records; 3,179 groups; 3,151 × has 1 speaker, not two (parse); 1,290 × text tidied "
        "(normalise); 15 × link replaced (scrub); 1,749 × truncated (length); 213 × not rated (build); "
        "771 × uninformative rating (build); 14 of 3 other kinds"
    )
    assert record_counts({"counts": {"groups short of responses": 1, "records": 1, "cut": 2}}) == (
        "1 group of which an answer was left out; 1 record; 2 cut to max_tokens"
    )
    assert record_counts({"counts": {"groups short of responses": 2}}).startswith("2 groups of which")
    assert record_counts({}) == "" == record_counts({"counts": {"dropped": 0}})


def test_the_table_at_the_end_and_the_log_name_the_records() -> None:
    console = Console(file=io.StringIO(), width=200)
    stage = Stage("select_1", "select", "groups", {})
    with Display(console) as display:
        display.finished(
            stage,
            Artifact("groups", Path(), "k", meta={"counts": SELECT, "headline": "half [/done]"}),
            reused=False,
            seconds=3.0,
        )
        display.finished(stage, Artifact("groups", Path(), "k", meta={"steps": 3}), reused=True, seconds=0.0)
        console.print(display.table())
    log, _, table = console.file.getvalue().partition("stage ")  # type: ignore[attr-defined]
    assert (
        "select 1: done in 3 s  half [/done]\nselect 1: records: 64 groups before the selection; 3 ties"
        in log
    )
    assert (
        "half [/done]" in table
        and "records: 64 groups before the selection; 3 ties; 2 margins" in table
        and table.count("records") == 1
    )
    assert (
        stage_headline({"counts": SELECT, "steps": 3}) == "3 steps" and stage_headline({"steps": 0}) == ""
    ), "a linear probe takes none"


def test_log_lines_have_no_trailing_spaces(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """The table before a run, the one after it, and a row that is a terminal's width twice over."""
    console = open_console()
    print_plan(console, Pipeline.open("online_dpo", home=tmp_path, profile="test"), full=True)
    with Display(console) as display:
        for counts in ({}, SELECT):
            artifact = Artifact("groups", Path(), "k", meta={"counts": counts})
            display.finished(Stage("select_1", "select", "groups", {}), artifact, reused=True, seconds=0.0)
        console.print(display.table())
    console.print("[bold]a[/bold] [/done] ", markup=False)
    console.print()
    output = capsys.readouterr().out.splitlines()
    assert [line for line in output if line != line.rstrip()] == []
    assert {"stage would key from", "reward models 1", "stage seconds result"} <= {
        " ".join(line.split()) for line in output
    }
    assert output[-2:] == ["[bold]a[/bold] [/done]", ""] and any(
        "59 groups after best_worst" in line for line in output
    )


def test_show_prints_the_records_and_mlflow_gets_every_count(publish, run_of, tmp_path: Path) -> None:
    run_of(
        "one",
        drafts=publish("drafts", kind="data", counts=DRAFTS),
        sft=publish("sft", counts={"records": 290, "over the limit": 130}),
    )
    shown = " ".join(CliRunner().invoke(app, ["show", "one", "--home", str(tmp_path)]).output.split())
    for one in ("3,151 × has 1", "1,749 × truncated (length)", "290 records; 130 more than `limit`"):
        assert one in shown
    assert numbers_of({"counts": DRAFTS})["counts.length: truncated"] == 1749.0


def test_progress_fits_80_columns() -> None:
    console = Console(file=io.StringIO(), width=80, force_terminal=True)
    with Display(console) as display:
        display.started(Stage("optimise_3", "optimise", "weights", {}), Path())
        now = time.time()
        for step, seconds in ((10, now + 1), (40, now + 61)):
            display.progressed(
                Stage("optimise_3", "optimise", "weights", {}),
                {
                    "step": step,
                    "of": 120,
                    "time": seconds,
                    "metrics": {
                        "loss": 0.2893,
                        "preference.dpo/loss": 0.2893,
                        "preference.dpo/margin": 0.25,
                        "tokens_per_second": 400.0,
                    },
                },
            )
        assert display.live is not None
        with console.capture() as captured:
            console.print(display.live.make_tasks_table(display.live.tasks), no_wrap=True)
    line = re.sub(r"\x1b\[[\d;]*[a-zA-Z]|\r", "", captured.get()).splitlines()[0]
    assert (
        "optimise 3" in line
        and "40/120 steps 2 s each 0:02:40 left" in line
        and len(line) <= 80
        and "loss" in line
    )


def test_resumed_stage_shows_its_step(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    for step in (8, 40):
        (tmp_path / "progress" / f"checkpoint-{step}").mkdir(parents=True)
    with Display(open_console()) as display:
        display.started(Stage("sft", "sft", "weights", {}), tmp_path / "product" / "metrics.jsonl")
        now = time.time()
        for step, seconds in ((40, -600), (41, 1), (51, 6)):  # the first is of an earlier attempt
            display.last_print -= 60
            line = {"step": step, "of": 60, "time": now + seconds, "metrics": {}}
            display.progressed(Stage("sft", "sft", "weights", {}), line)
    assert capsys.readouterr().out.splitlines() == [
        "sft: started",
        "sft: continues at step 40",
        "sft: step 40 of 60",
        "sft: step 41 of 60",
        "sft: step 51 of 60  2/s, 0:00:04 left",
    ]


def test_time_left_needs_more_than_one_unit_and_ends_with_the_last(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with Display(open_console()) as display:
        display.started(Stage("demonstrated", "demonstrate", "groups", {}), Path("product/metrics.jsonl"))
        now = time.time()
        for step, seconds in ((0, 1), (1, 19), (10, 21), (3936, 1001)):
            display.last_print -= 60
            line = {"step": step, "of": 3936, "unit": "answers", "time": now + seconds, "metrics": {}}
            display.progressed(Stage("demonstrated", "demonstrate", "groups", {}), line)
    assert capsys.readouterr().out.splitlines()[1:] == [
        "demonstrated: 0 of 3936 answers",
        "demonstrated: 1 of 3936 answers  18 s each",
        "demonstrated: 10 of 3936 answers  2 s each, 2:10:52 left",
        "demonstrated: 3936 of 3936 answers  3.94/s, finishing",
    ]


def test_an_outcome_says_what_was_spent_and_why_nothing_was_compared() -> None:
    nothing = {"against": "other", "moved": [], "compared": []}
    known = {
        "drift": {"data": nothing, "results": nothing},
        "spent": {"hours": 2.0},
        "gates": [],
        "registered": {},
        "not_required": [],
        "state": "done",
    }
    console = Console(file=io.StringIO(), width=200)
    print_outcome(console, defaultdict(str, known))
    text = console.file.getvalue()
    assert "data against other: the same data" in text and "results against other: no score" in text
    assert "2 hours, by all stages, kept ones included" in text
    moved = {"against": "other", "moved": ["mean length moved"], "compared": [{}, {}]}
    still = {**moved, "moved": []}
    print_outcome(console, defaultdict(str, known, drift={"data": moved, "results": still}))
    text = console.file.getvalue()
    assert "data against other: mean length moved" in text
    assert "results against other: none in 2 comparisons" in text
