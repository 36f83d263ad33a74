"""Bad input on the command line: one sentence with the file and the fix, non-zero exit code, nothing lost."""

from __future__ import annotations

import json
import os
import re
import resource
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from safetensors.torch import save_file

from ratchet.components.data.groups import read_groups
from ratchet.components.errors import SourceError
from ratchet.components.storage.state import load_state
from ratchet.flows import post_training
from ratchet.flows.cli import main
from ratchet.tasks.pipeline import Pipeline

ROOT = Path(__file__).resolve().parents[2]
ROWS = [
    {"prompt": f"what is {i} and {i * 7}?", "completion": f"it is {i * 8}, said {i % 5} times", "label": True}
    for i in range(80)
]


@dataclass(frozen=True)
class Done:
    code: int
    output: str
    errors: list[str]


Ratchet = Callable[..., Done]


@pytest.fixture
def ratchet(folder: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Ratchet:
    """The command, in a folder whose `home` holds the tiny model; no file may grow beyond `largest_file`
    bytes.
    """
    monkeypatch.chdir(folder)

    def run(*arguments: str, largest_file: int | None = None) -> Done:
        monkeypatch.setattr(sys, "argv", ["ratchet", *arguments, "--home", "home", "--profile", "test"])
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (largest_file or soft, hard))
        try:
            main()
            code = 0
        except SystemExit as stopped:
            code = int(stopped.code or 0)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        out, err = capfd.readouterr()
        return Done(code, out + err, [line for line in err.splitlines() if line.startswith("error: ")])

    return run


def apart(*arguments: str, cwd: Path) -> Done:
    """Run the command in a separate process that may start servers, without the tests' Prefect settings."""
    env = {k: v for k, v in os.environ.items() if not k.startswith(("PREFECT_", "MLFLOW_TRACKING"))} | {
        "PYTHONPATH": str(ROOT / "infra" / "package")
    }
    done = subprocess.run(
        [sys.executable, "-m", "ratchet.flows.cli", *arguments, "--home", "home", "--profile", "test"],
        cwd=cwd,
        env=env,
        capture_output=True,
        text=True,
    )
    return Done(
        done.returncode,
        done.stdout + done.stderr,
        [line for line in done.stderr.splitlines() if line.startswith("error: ")],
    )


def recipe(folder: Path, source: str, more: str = "") -> Path:
    (folder / "mine.yaml").write_text(
        f"schema: 1\nabout: mine\nbase: sft\ndata: {{source: '{source}', transforms: []}}\n{more}"
    )
    return folder / "mine.yaml"


def refused(done: Done) -> str:
    """The one sentence of a run that was refused."""
    assert done.code == 1 and len(done.errors) == 1 and "Traceback" not in done.output, done.output
    return done.errors[0]


@pytest.fixture
def folder(fresh_home: Callable[[str], Path]) -> Path:
    folder = fresh_home("home").parent
    shutil.copy(ROOT / "dvc.yaml", folder)
    return folder


def written(folder: Path, name: str, content: Any) -> str:
    file = folder / name
    if isinstance(content, bytes):
        file.write_bytes(content)
    elif name.endswith(".parquet"):
        pq.write_table(pa.Table.from_pylist(content), file)
    else:
        file.write_text("".join(json.dumps(row) + "\n" for row in content))
    return f"path:{name}"


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        (
            "absent.jsonl",
            None,
            "path:{0}: there is no file or folder {0}; relative paths start at the folder of the recipe",
        ),
        ("empty.jsonl", [], "path:{0} holds no usable record: it is empty"),
        ("bad.parquet", b"PAR1 this is not parquet PAR1", "path:{0} is not a readable Parquet file: "),
    ],
)
def test_unusable_source_is_an_error(
    name: str, content: Any, message: str, folder: Path, ratchet: Ratchet
) -> None:
    source = f"path:{name}" if content is None else written(folder, name, content)
    file, home = recipe(folder, source), folder / "home"
    parts = [ratchet("stage", part, str(file)) for part in ("fetch", "curate")]
    failed = next(done for done in parts if done.code)
    assert refused(failed).startswith("error: " + message.format(folder / name)), refused(failed)
    assert not list(home.glob("store/drafts-*"))
    written(folder, name, ROWS)  # what the sentence asks for: then the same command goes on
    for part in ("fetch", "curate"):
        done = ratchet("stage", part, str(file))
        assert done.code == 0, done.output
    assert len(list(home.glob("store/model_policy-*"))) == 1 and len(list(home.glob("store/drafts-*"))) == 1


def test_stage_replaces_no_files_of_the_user(folder: Path, ratchet: Ratchet) -> None:
    """DVC owns the outputs of dvc.yaml; anything else under data/ stays."""
    kept = folder / "data" / "raw" / "rows.jsonl"
    kept.parent.mkdir(parents=True)
    source = written(folder, "data/raw/rows.jsonl", ROWS)
    lies_in_output = ratchet("stage", "fetch", str(recipe(folder, source)))
    assert lies_in_output.code == 2 and f"{kept} lies in an output of dvc.yaml" in lies_in_output.output
    (folder / "dvc.yaml").unlink()
    file = recipe(folder, written(folder, "rows.jsonl", ROWS))
    without_dvc = ratchet("stage", "fetch", str(file))
    assert without_dvc.code == 2 and "no dvc.yaml with a stage 'fetch'" in without_dvc.output
    assert kept.exists() and not (folder / "home" / "runs").exists()


def test_corrupt_row_is_quarantined_and_counted(folder: Path, ratchet: Ratchet) -> None:
    """A Parquet row without what its layout needs, among whole ones."""
    source = written(folder, "rows.parquet", [*ROWS, {"prompt": "what?", "completion": None, "label": True}])
    file = recipe(folder, source)
    for part in ("fetch", "curate"):
        done = ratchet("stage", part, str(file))
        assert done.code == 0, done.output
    (drafts,) = (folder / "home").glob("store/drafts-*")
    (line,) = (drafts / "quarantine.jsonl").read_text().splitlines()
    summary = json.loads((drafts / "summary.json").read_text())
    assert "completion" in line and summary["steps"][0] == {**summary["steps"][0], "in": 81, "out": 80}
    message = refused(ratchet("stage", "curate", str(file), "--set", "data.max_dropped=0.0"))
    assert (
        "1 of 81 records (1.2%) are lost before the split, at most 0 (0.0%) allowed" in message
        and "quarantine.jsonl" in message
    ), "where none may be"


def test_a_model_without_a_tokenizer(folder: Path, tiny_model: Path, ratchet: Ratchet) -> None:
    shutil.copytree(
        tiny_model,
        folder / "bare",
        ignore=shutil.ignore_patterns("tokenizer*", "*.jinja", "manifest.json", "special_tokens*"),
    )
    file = recipe(
        folder,
        written(folder, "rows.jsonl", ROWS),
        "models: {policy: {source: 'path:bare', format: huggingface}}\n",
    )
    assert ratchet("stage", "fetch", str(file)).code == 0
    assert "holds no tokenizer (tokenizer.json expected); save it beside the weights" in refused(
        ratchet("stage", "curate", str(file))
    )


def test_conversation_of_5000_turns_without_truncation(folder: Path, ratchet: Ratchet) -> None:
    turns = [
        {"role": ("user", "assistant")[i % 2], "content": f"turn number {i} of many"} for i in range(5000)
    ]
    file = recipe(folder, written(folder, "long.jsonl", [{"messages": turns}, *ROWS]))
    for part in ("fetch", "curate"):
        done = ratchet("stage", part, str(file))
        assert done.code == 0, done.output
    (drafts,) = (folder / "home").glob("store/drafts-*")
    assert (
        max(len(g.prompt.messages) for split in drafts.glob("sft*.parquet") for g in read_groups(split)) < 100
    )
    summary = json.loads((drafts / "summary.json").read_text())
    noted = {reason for step in summary["steps"] for reason in [*step["dropped"], *step["changed"]]}
    assert any("token" in reason or "cut" in reason or "long" in reason for reason in noted), noted


OVERFLOWS = """
sft:
  fit:
    save_every: 1
    validate_every: 0
    batch: 8
    updates: {policy: [{name: likelihood, reduce: token_mean, weight: {name: anneal, start: 1.0, end: 1.0e+60, steps: 2}}]}
"""  # noqa: E501


def test_non_finite_loss_stops_the_run(folder: Path, ratchet: Ratchet) -> None:
    """The error names the prompts; finished stages and the last checkpoint are kept; the corrected recipe
    resumes.
    """
    source, home = written(folder, "rows.jsonl", ROWS), folder / "home"
    file = recipe(folder, source, OVERFLOWS)
    for part in ("fetch", "curate"):
        done = ratchet("stage", part, str(file))
        assert done.code == 0, done.output
    before = {made.name: made.stat().st_ino for made in (home / "store").glob("[!.]*")}
    done = apart("run", str(file), "--until", "train", cwd=folder)
    match = re.fullmatch(
        r"error: (the loss term 'likelihood' is inf on prompts (?P<prompts>.+); the last checkpoint is "
        r"kept\. "
        r"Lower the learning rate or inspect these records)",
        refused(done),
    )
    assert match and "a watcher failed" not in done.output, done.output
    pipeline = Pipeline.open(file, home=home, profile="test")
    assert set(match["prompts"].split(", ")) < {
        group.prompt.id for group in read_groups(pipeline.artifact("curated").path / "sft.parquet")
    }
    state = json.loads((pipeline.run.path / "run.json").read_text())
    assert state["state"] == "failed" and match[1] in state["error"]
    assert load_state(next((home / "store/.work").glob("sft-*/progress/checkpoint-*")))["state"]["step"] == 1
    assert {made.name: made.stat().st_ino for made in (home / "store").glob("[!.]*")} == before

    recipe(folder, source, "sft: {fit: {batch: 8}}")
    would = dict(
        line.split()[:2]
        for line in ratchet("plan", str(file)).output.splitlines()
        if line.split()[1:2] in (["keep"], ["make"])
    )
    assert would == {
        "model_policy": "keep",
        "raw": "keep",
        "drafts": "keep",
        "curated": "keep",
        "sft": "make",
        "answers_base": "make",
        "answers_policy": "make",
        "evaluate": "make",
    }
    assert Pipeline.open(file, home=home, profile="test").make("sft").meta["steps"] > 1


def test_full_disk_is_one_sentence_and_the_run_resumes(folder: Path, ratchet: Ratchet) -> None:
    file = recipe(folder, written(folder, "rows.jsonl", ROWS))
    assert ratchet("stage", "fetch", str(file)).code == 0
    before = {p.name for p in (folder / "home" / "store").glob("[!.]*")}
    message = refused(ratchet("stage", "curate", str(file), largest_file=4096))
    assert "too large" in message.lower() or "disk" in message, message
    assert {p.name for p in (folder / "home" / "store").glob("[!.]*")} == before
    done = ratchet("stage", "curate", str(file))
    assert done.code == 0, done.output
    assert all(
        (artifact / "manifest.json").exists() for artifact in (folder / "home" / "store").glob("[!.]*")
    )


def test_a_fetched_model_without_all_its_layers_stops_before_the_data(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"num_hidden_layers": 2}))
    save_file({"model.layers.0.weight": torch.zeros(1)}, tmp_path / "model.safetensors")
    made: list[str] = []
    monkeypatch.setattr(
        post_training, "make", lambda _, name: made.append(name) or SimpleNamespace(path=tmp_path)
    )
    monkeypatch.setattr(post_training, "check_model", lambda *_: None)
    stages = {name: SimpleNamespace(name=name, part="curate") for name in ("model_policy", "raw")}
    with pytest.raises(SourceError, match="layers"):
        post_training.curate(SimpleNamespace(recipe=None, stages=stages))  # pyright: ignore[reportArgumentType]
    assert made == ["model_policy"]
