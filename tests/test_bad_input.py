"""Bad input: one clear sentence, non-zero exit code, nothing lost."""

from __future__ import annotations

import contextlib
import gzip
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import ratchet.components.training.trainer
import ratchet.flows.post_training as flow
from ratchet.components.data.groups import read_groups
from ratchet.components.errors import (
    ContractError,
    DataError,
    RatchetError,
    RecipeError,
    SourceError,
    StoreError,
    TrainingError,
)
from ratchet.components.recipes.check_data import check_files
from ratchet.components.recipes.recipe import load
from ratchet.components.storage.store import disk_errors, file_digest
from ratchet.flows.cli import app
from ratchet.flows.commands.stage import run_part
from ratchet.tasks.pipeline import Pipeline

ROOT = Path(__file__).resolve().parents[1]


def cli(*arguments: str, cwd: Path, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "ratchet.flows.cli", *arguments],
        cwd=cwd,
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT / "infra" / "package"), **env},
    )


def recipe(folder: Path, text: str) -> Path:
    file = folder / "mine.yaml"
    file.write_text("schema: 1\nabout: mine\nbase: sft\n" + text)
    return file


def test_a_misspelt_key(tmp_path: Path) -> None:
    done = cli("run", str(recipe(tmp_path, "sftt: {}\n")), cwd=tmp_path)
    assert done.returncode == 2 and done.stderr.startswith(
        "error: sftt: unknown key 'sftt'; did you mean 'sft'?"
    )
    assert "Traceback" not in done.stderr and not (tmp_path / "out").exists()


def test_a_health_rule_needs_its_limit() -> None:
    with pytest.raises(RecipeError, match=r"online\.health\.entropy.*'limit'"):
        load("online_dpo", overrides=["online.health.entropy={action: warn}"])


def test_a_missing_data_file(tmp_path: Path, tiny_home: Path) -> None:
    file = recipe(tmp_path, f"data: {{source: 'path:{tmp_path}/absent.jsonl'}}\n")
    pipeline = Pipeline.open(file, home=tiny_home, profile="test")
    with pytest.raises(SourceError, match=r"absent\.jsonl"):
        pipeline.make("raw")


def test_an_empty_data_set(tmp_path: Path, tiny_home: Path) -> None:
    (tmp_path / "empty.jsonl").write_text("")
    file = recipe(tmp_path, f"data: {{source: 'path:{tmp_path}/empty.jsonl'}}\n")
    pipeline = Pipeline.open(file, home=tiny_home, profile="test")
    pipeline.make("raw")
    pipeline.make("model_policy")
    with pytest.raises((DataError, SourceError), match="usable record"):
        pipeline.make("drafts")


def test_a_corrupt_parquet_file(tmp_path: Path, tiny_home: Path) -> None:
    (tmp_path / "bad.parquet").write_bytes(b"PAR1 this is not parquet PAR1")
    file = recipe(tmp_path, f"data: {{source: 'path:{tmp_path}/bad.parquet'}}\n")
    pipeline = Pipeline.open(file, home=tiny_home, profile="test")
    pipeline.make("raw")
    pipeline.make("model_policy")
    with pytest.raises(DataError, match="parquet"):
        pipeline.make("drafts")


def test_a_conversation_of_5000_turns_is_truncated_once(tmp_path: Path, tiny_home: Path) -> None:
    turns = [
        {"role": ("user", "assistant")[i % 2], "content": f"turn number {i} of many"} for i in range(5000)
    ]
    rows = [{"messages": turns}] + [
        {
            "messages": [
                {"role": "user", "content": f"hello there {i} {i * 7}"},
                {"role": "assistant", "content": f"hi, {i} times over {i * 3}"},
            ]
        }
        for i in range(60)
    ]
    (tmp_path / "long.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    file = recipe(
        tmp_path,
        f"data: {{source: 'path:{tmp_path}/long.jsonl', transforms: [{{name: length, max_tokens: 200}}]}}\n",
    )
    pipeline = Pipeline.open(file, home=tiny_home, profile="test")
    for name in ("raw", "model_policy", "drafts"):
        drafts = pipeline.make(name)
    step = next(s for s in drafts.meta["summary"]["steps"] if s["step"] == "length")
    assert step["changed"] == {"truncated": 1}


def test_a_model_directory_without_tokenizer(tmp_path: Path, tiny_home: Path, tiny_model: Path) -> None:
    bare = tmp_path / "model"
    shutil.copytree(
        tiny_model,
        bare,
        ignore=shutil.ignore_patterns("tokenizer*", "*.jinja", "manifest.json", "special_tokens*"),
    )
    file = recipe(tmp_path, f"models: {{policy: {{source: 'path:{bare}', format: huggingface}}}}\n")
    pipeline = Pipeline.open(file, home=tiny_home, profile="test")
    for name in ("model_policy", "raw"):
        pipeline.make(name)
    with pytest.raises((SourceError, ContractError), match="tokenizer"):
        pipeline.make("drafts")


def test_a_pickled_model_is_never_loaded(tmp_path: Path, tiny_home: Path, tiny_model: Path) -> None:
    evil = tmp_path / "model"
    shutil.copytree(tiny_model, evil, ignore=shutil.ignore_patterns("*.safetensors", "manifest.json"))
    (evil / "pytorch_model.bin").write_bytes(
        b"cos\nsystem\n(S'touch " + str(tmp_path).encode() + b"/pwned'\ntR."
    )
    file = recipe(tmp_path, f"models: {{policy: {{source: 'path:{evil}', format: huggingface}}}}\n")
    pipeline = Pipeline.open(file, home=tiny_home, profile="test", overrides=["sft.limit=8"])
    with pytest.raises(SourceError, match="no weights"):
        for name in ("model_policy", "raw", "drafts", "curated", "sft"):
            pipeline.make(name)
    assert not (tmp_path / "pwned").exists()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            [
                "sft.fit.updates.policy=[{name: likelihood, reduce: token_mean, weight: {name: anneal, "
                "start: 1.0, end: 1.0e+60, steps: 2}}]",
                "sft.fit.validate_every=0",
            ],
            r"the loss term 'likelihood' is inf on prompts (?P<prompts>[\w-]+(, [\w-]+){4}); the last "
            r"checkpoint is kept\. "
            r"Lower the learning rate or inspect these records",
        ),
        (
            ["sft.fit.weight_decay=1e30", "sft.fit.warmup=0.0", "sft.fit.max_grad_norm=1e30"],
            r"the gradient norm of update 2 is nan; the weights were not touched\. Lower the learning "
            r"rate or inspect the records of this step "
            r"\(prompts (?P<prompts>[\w-]+(, [\w-]+){4})\)",
        ),
    ],
)
def test_non_finite_loss_or_gradient_is_an_error_and_keeps_the_checkpoint(
    changes: list[str], message: str, tiny_home: Path
) -> None:
    pipeline = Pipeline.open(
        "sft", home=tiny_home, profile="test", overrides=["sft.limit=32", "sft.fit.save_every=1", *changes]
    )

    def work() -> dict[str, bytes]:
        (folder,) = tiny_home.glob(f"store/.work/sft-{pipeline.stages['sft'].key[:16]}")
        return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}

    kept = []
    for _ in range(2):  # the same recipe resumes from its checkpoint and fails at the same step
        with pytest.raises(TrainingError) as stopped:
            for name in pipeline.stages:
                pipeline.make(name)
        match = re.fullmatch(message, str(stopped.value))
        assert match, str(stopped.value)
        kept.append(work())
    assert kept[0] == kept[1] and {
        "product/metrics.jsonl",
        "progress/checkpoint-1/tensors.safetensors",
    } < set(kept[0]), "the second attempt resumes from checkpoint-1 and changes nothing"
    known = {group.prompt.id for group in read_groups(pipeline.artifact("curated").path / "sft.parquet")}
    assert set(match["prompts"].split(", ")) <= known


def test_full_disk_is_a_store_error(tmp_path: Path) -> None:
    import errno

    with pytest.raises(StoreError, match="disk is full"), disk_errors("saving"):
        raise OSError(errno.ENOSPC, "No space left on device")


def test_damaged_artifact_is_recomputed(
    fresh_home: Callable[[str], Path], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def pipeline_of() -> Pipeline:
        pipeline = Pipeline.open("sft", home=fresh, profile="test")
        pipeline.make("raw")
        return pipeline

    fresh = fresh_home("damaged")
    file = next(p for p in pipeline_of().artifact("raw").path.iterdir() if p.name.startswith("source"))
    good = file.read_bytes()
    for number, bad in enumerate(
        (good[:-1] + bytes([good[-1] ^ 1]), good + b"x"), 1
    ):  # a flipped bit, and a byte more
        file.write_bytes(bad)
        pipeline = pipeline_of()
        assert file.read_bytes() == good and pipeline.status()[1].state == "done"
        messages = [record.message for record in caplog.records if "is damaged" in record.message]
        assert len(messages) == number and messages[-1].startswith(f"{file} is damaged: ")
    assert pipeline.status()[1].stage.name == "raw"
    file.write_bytes(bad)
    assert pipeline.status()[1].state == "run"
    monkeypatch.chdir(fresh)
    shutil.copy(Path(__file__).parent.parent / "dvc.yaml", fresh)
    file.write_bytes(bad[:-2] + b"x\n")
    run_part(
        "curate", "sft", home=fresh, profile="test"
    )  # `dvc repro` skips `fetch`, whose recorded output did not change: `curate` must notice
    assert file.read_bytes() == good and len([r for r in caplog.records if "is damaged" in r.message]) == 3


def test_damaged_artifact_is_recomputed_with_gpu_slots(
    fresh_home: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """An intact artifact acquires no GPU slots; a damaged one is computed again, and does."""
    requested: list[int] = []

    @contextlib.contextmanager
    def slots(number: int) -> Iterator[tuple[str, ...]]:
        requested.append(number)
        yield ()

    monkeypatch.setattr(flow, "gpu_slots", slots)
    monkeypatch.setattr(flow, "make", lambda pipeline, name: pipeline.make(name))
    home = fresh_home("gpus")
    for damaged in (False, False, True):
        pipeline = Pipeline.open("sft", home=home, profile="test")
        if damaged:
            file = pipeline.artifact("raw").path / "source.jsonl"
            file.write_bytes(file.read_bytes()[:-2] + b"x\n")
        flow.make_on_gpus(pipeline, "raw", 2)
    assert requested == [2, 0, 2]


def test_damaged_checkpoint_restarts_the_stage(
    fresh_home: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Damage to the latest or to the best checkpoint; no later step can rebuild the best one."""
    options = [
        "sft.limit=32",
        "sft.fit.save_every=1",
        "sft.fit.validate_every=1",
        "sft.fit.epochs=2",
        "sft.fit.learning_rate=0.3",
        "sft.fit.min_ended=0.0",
    ]

    def pipeline_of(home: Path) -> tuple[str, dict[str, object]]:
        pipeline = Pipeline.open("sft", home=home, profile="test", overrides=options)
        for name in list(pipeline.stages)[: list(pipeline.stages).index("sft") + 1]:
            pipeline.make(name)
        artifact = pipeline.artifact("sft")
        return file_digest(artifact.path / "model.safetensors"), {
            k: v for k, v in artifact.meta.items() if k in ("steps", "best_step")
        }

    begun = fresh_home("begun")
    for name in ("raw", "drafts", "curated"):
        Pipeline.open("sft", home=begun, profile="test", overrides=options).make(name)

    def home_of(name: str) -> Path:
        return shutil.copytree(begun, begun.parent / name, symlinks=True)

    truth = pipeline_of(home_of("undisturbed"))
    assert truth[1]["best_step"] != truth[1]["steps"], "the best checkpoint must be read at the end"
    saved = ratchet.components.training.trainer.save_checkpoint

    def killed(progress: Path, state: dict[str, int], *rest: object) -> None:
        saved(progress, state, *rest)
        if state["step"] == 3:
            raise KeyboardInterrupt

    for name in ("checkpoint-3", "best"):
        home = home_of(name)
        with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
            patched.setattr(ratchet.components.training.trainer, "save_checkpoint", killed)
            pipeline_of(home)
        (folder,) = home.glob(f"store/.work/sft-*/progress/{name}")
        file = folder / "tensors.safetensors"
        file.write_bytes(file.read_bytes()[:-1] + b"x")
        caplog.clear()
        assert pipeline_of(home) == truth
        (warning,) = [record.message for record in caplog.records if "is damaged" in record.message]
        assert warning.startswith(f"the checkpoint at {folder} is damaged: ") and "sft restarts" in warning


def lines(rows: Sequence[Any]) -> str:
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)


def chats(**more: Any) -> list[dict[str, Any]]:
    """Sixty conversations, each with the columns `more`."""
    return [
        {
            "messages": [
                {"role": "user", "content": f"what is {i}?"},
                {"role": "assistant", "content": f"it is {i}"},
            ],
            **more,
        }
        for i in range(60)
    ]


def table(header: str, row: str) -> str:
    return header + "\n" + "".join(row.format(i=i) + "\n" for i in range(60))


CSV = table("prompt,completion", "what is {i}?,it is {i}")
SURROGATE = "".join(f'{{"prompt": "what is {i} \\ud83d?", "completion": "it is"}}\n' for i in range(60))
NAMED = lines(
    [
        {
            "conversations": [
                {"from": "User", "value": f"what is {i}?"},
                {"from": "Bot", "value": f"it is {i}"},
            ]
        }
        for i in range(60)
    ]
)
SCORES = "".join(
    f'{{"prompt": "{i}?", "chosen": "a{i}", "rejected": "b", "score_chosen": NaN, "score_rejected": 1}}\n'
    for i in range(60)
)
ANSWERS = [
    {"question": f"what is {i} + 1?", "answer": None if i % 3 == 0 else f"#### {i + 1}"} for i in range(60)
]


def calls(made: Any) -> str:
    turns = [{"role": "user", "content": "go"}, {"role": "assistant", "content": None, "tool_calls": made}]
    return lines([{"messages": turns}] * 9)


ACCEPTED: dict[str, tuple[str, str | bytes]] = {
    "CRLF and a byte order mark": (
        "d.jsonl",
        b"\xef\xbb\xbf" + lines(chats()).replace("\n", "\r\n").encode(),
    ),
    "semicolons, as spreadsheets write them": ("d.csv", CSV.replace(",", ";")),
    "spaces in a header": ("d.csv", CSV.replace("prompt,", "prompt , ")),
    "a compressed table": ("d.csv.gz", gzip.compress(CSV.encode())),
    "a compressed list": ("d.json.gz", gzip.compress(json.dumps(chats()).encode())),
    "JSON lines in a .json": ("d.json", lines(chats())),
    "a list in a .jsonl": ("d.jsonl", json.dumps(chats(), indent=1)),
    "a suffix in capitals": ("D.JSONL", lines(chats())),
    "ndjson": ("d.ndjson", lines(chats())),
    "messages as JSON text": (
        "d.jsonl",
        lines([{"messages": json.dumps(row["messages"])} for row in chats()]),
    ),
    "roles in capitals and a bot": ("d.jsonl", NAMED),
    "a number as topic": ("d.jsonl", lines([{**row, "topic": i % 20} for i, row in enumerate(chats())])),
    "no id": ("d.jsonl", lines(chats(id=None))),
    "a line nested 100,000 deep": ("d.jsonl", "[" * 100_000 + "]" * 100_000 + "\n" + lines(chats())),
    "quotes in its name": ('it\'s "q".jsonl', lines(chats())),
    "a colon in its name": ("a: b #c.jsonl", lines(chats())),
    "a line break in its name": ("a\nb.jsonl", lines(chats())),
    "another alphabet in its name": ("donn\u00e9es/\u6570\u636e 1.jsonl", lines(chats())),
}


@pytest.mark.parametrize("case", ACCEPTED)
def test_unusual_file_keeps_all_valid_rows(case: str, tmp_path: Path) -> None:
    name, content = ACCEPTED[case]
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    more = ["--out", str(tmp_path / "mine.yaml"), "--model", "generate:tiny?seed=0"]
    done = CliRunner().invoke(app, ["init", str(tmp_path / name), *more], catch_exceptions=False)
    assert done.exit_code == 0 and ": 60 conversations" in done.output
    checked = check_files(load(tmp_path / "mine.yaml")[0], show=1)
    assert sum(checked.groups.values()) == 60
    (first,) = checked.examples["sft"]
    assert re.fullmatch(r"what is \d+\?", first.messages[-1]["content"])
    assert re.fullmatch(r"it is \d+", first.answers[0][-1]["content"])


REJECTED: dict[str, tuple[str, str | bytes, str]] = {
    "UTF-16": ("d.jsonl", lines(chats()).encode("utf-16"), "d.jsonl is in UTF-16; expected UTF-8"),
    "a table in UTF-16": ("d.csv", CSV.encode("utf-16"), "d.csv is in UTF-16; expected UTF-8"),
    "a list in UTF-16": (
        "d.json",
        json.dumps(chats()).encode("utf-16"),
        "d.json is in UTF-16; expected UTF-8",
    ),
    "a table in UTF-16 without a BOM": (
        "d.tsv",
        CSV.replace(",", "\t").encode("utf-16-le"),
        "d.tsv is in UTF-16; expected UTF-8",
    ),
    "lines in UTF-16 without a BOM": (
        "d.jsonl",
        lines(chats()).encode("utf-16-le"),
        "d.jsonl is in UTF-16; expected UTF-8",
    ),
    "completions that are texts": (
        "d.jsonl",
        lines([{"instruction": "a", "completions": ["b", "c"]}] * 9),
        "completions: expected objects with `response` and `overall_score`: got b",
    ),
    "a column twice": ("d.csv", table("prompt,prompt,completion", "x,{i}?,it"), "the column 'prompt' twice"),
    "a quote that never ends": ("d.csv", CSV.replace("what", '"what', 1), "unexpected end of data"),
    "an unpaired surrogate": ("d.jsonl", SURROGATE, "a text has half a character, '\\ud83d'"),
    "a rating that is no number": (
        "d.jsonl",
        lines(chats(rating="five")),
        "rating: expected a finite number",
    ),
    "an infinite rating": ("d.jsonl", lines(chats(rating=1.0)).replace("1.0", "1e999"), "got 'inf'"),
    "a score that is NaN": ("d.jsonl", SCORES, "score_chosen: expected a finite number: got 'nan'"),
    "a list of ratings": ("d.jsonl", lines(chats(ratings=[1])), "ratings: expected an object or its JSON"),
    "meta that is no object": (
        "d.jsonl",
        lines(chats(meta="x")),
        "meta: expected an object or its JSON: got x",
    ),
    "an object as topic": ("d.jsonl", lines(chats(topic={"a": 1})), "topic: expected a text: got {'a': 1}"),
    "tools that are no JSON": ("d.jsonl", lines(chats(tools="[{")), "tools: expected a list of functions"),
    "a tool call as text": ("d.jsonl", calls("f(x)"), "tool_calls: expected a list of objects"),
    "a tool call without a name": ("d.jsonl", calls([{"arguments": "{}"}]), "needs the name of its function"),
    "a content part whose text is a list": (
        "d.jsonl",
        lines([{"messages": [{"role": "user", "content": [{"type": "text", "text": ["x"]}]}]}] * 9),
        "a part of a message needs a text",
    ),
    "a history entry of three texts": (
        "d.jsonl",
        lines([{"instruction": "a", "output": "b", "history": [["a", "b", "c"]]}] * 9),
        "history: expected pairs of an instruction and its output",
    ),
    "a list as reference answer": (
        "d.jsonl",
        lines([{"question": "1 + 1?", "answer": ["2"]}] * 9),
        "answer: expected a text or a number: got ['2']",
    ),
    "a verifiable reward without reference answers": (
        "d.jsonl",
        lines(ANSWERS),
        "rewards.exact_answer compares with the reference answer, which 17 of 54 prompts of 'prompts' lack",
    ),
}


@pytest.mark.parametrize("case", REJECTED)
def test_unusable_file_is_one_sentence(case: str, tmp_path: Path) -> None:
    name, content, message = REJECTED[case]
    (tmp_path / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    more = ["--out", str(tmp_path / "mine.yaml"), "--model", "generate:tiny?seed=0"]
    with pytest.raises(RatchetError) as refused:
        CliRunner().invoke(app, ["init", str(tmp_path / name), *more], catch_exceptions=False)
    assert message in str(refused.value) and "\n" not in str(refused.value)
    assert "broken structure" not in str(refused.value) and not list(tmp_path.glob("*.yaml"))
