"""Bad input gives one clear sentence, a non-zero exit, and loses nothing."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from components.errors import ContractError, DataError, SourceError, StoreError, TrainingError
from components.store import disk_errors
from tasks.pipeline import Pipeline

ROOT = Path(__file__).resolve().parents[1]


def cli(*arguments: str, cwd: Path, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "flows.cli", *arguments], cwd=cwd, capture_output=True, text=True,
                          env={**os.environ, "PYTHONPATH": str(ROOT), **env})


def recipe(folder: Path, text: str) -> Path:
    file = folder / "mine.yaml"
    file.write_text("schema: 1\nabout: mine\nbase: sft\n" + text)
    return file


def test_a_misspelt_key(tmp_path: Path) -> None:
    done = cli("run", str(recipe(tmp_path, "sftt: {}\n")), cwd=tmp_path)
    assert done.returncode == 2 and done.stderr.startswith("error: sftt: unknown key 'sftt'; did you mean 'sft'?")
    assert "Traceback" not in done.stderr and not (tmp_path / "out").exists()


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
    with pytest.raises((DataError, SourceError), match="no usable record"):
        pipeline.make("drafts")


def test_a_corrupt_parquet_file(tmp_path: Path, tiny_home: Path) -> None:
    (tmp_path / "bad.parquet").write_bytes(b"PAR1 this is not parquet PAR1")
    file = recipe(tmp_path, f"data: {{source: 'path:{tmp_path}/bad.parquet'}}\n")
    pipeline = Pipeline.open(file, home=tiny_home, profile="test")
    pipeline.make("raw")
    pipeline.make("model_policy")
    with pytest.raises(DataError, match="parquet"):
        pipeline.make("drafts")


def test_a_conversation_of_5000_turns_is_cut_and_counted(tmp_path: Path, tiny_home: Path) -> None:
    turns = [{"role": ("user", "assistant")[i % 2], "content": f"turn number {i} of many"} for i in range(5000)]
    rows = [{"messages": turns}] + [{"messages": [{"role": "user", "content": f"hello there {i} {i * 7}"},
                                                  {"role": "assistant", "content": f"hi, {i} times over {i * 3}"}]} for i in range(60)]
    (tmp_path / "long.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    file = recipe(tmp_path, f"data: {{source: 'path:{tmp_path}/long.jsonl', transforms: [{{name: length, max_tokens: 200}}]}}\n")
    pipeline = Pipeline.open(file, home=tiny_home, profile="test")
    for name in ("raw", "model_policy", "drafts"):
        made = pipeline.make(name)
    step = next(s for s in made.meta["summary"]["steps"] if s["step"] == "length")
    assert step["changed"] == {"cut to the bound": 1}


def test_a_model_directory_without_tokenizer(tmp_path: Path, tiny_home: Path, tiny_model: Path) -> None:
    bare = tmp_path / "model"
    shutil.copytree(tiny_model, bare, ignore=shutil.ignore_patterns("tokenizer*", "*.jinja", "manifest.json", "special_tokens*"))
    file = recipe(tmp_path, f"models: {{policy: {{source: 'path:{bare}', format: huggingface}}}}\n")
    pipeline = Pipeline.open(file, home=tiny_home, profile="test")
    for name in ("model_policy", "raw"):
        pipeline.make(name)
    with pytest.raises((SourceError, ContractError), match="tokenizer"):
        pipeline.make("drafts")


def test_a_pickled_model_is_never_loaded(tmp_path: Path, tiny_home: Path, tiny_model: Path) -> None:
    evil = tmp_path / "model"
    shutil.copytree(tiny_model, evil, ignore=shutil.ignore_patterns("*.safetensors", "manifest.json"))
    (evil / "pytorch_model.bin").write_bytes(b"cos\nsystem\n(S'touch " + str(tmp_path).encode() + b"/pwned'\ntR.")
    file = recipe(tmp_path, f"models: {{policy: {{source: 'path:{evil}', format: huggingface}}}}\n")
    pipeline = Pipeline.open(file, home=tiny_home, profile="test", overrides=["sft.limit=8"])
    with pytest.raises(SourceError, match="no weights"):
        for name in ("model_policy", "raw", "drafts", "curated", "sft"):
            pipeline.make(name)
    assert not (tmp_path / "pwned").exists()


def test_a_nan_loss_names_the_term_and_the_prompts(tiny_home: Path) -> None:
    pipeline = Pipeline.open("sft", home=tiny_home, profile="test",
                             overrides=["sft.limit=32", "sft.fit.learning_rate=1e30", "sft.fit.warmup=0.0", "sft.fit.max_grad_norm=1e30"])
    with pytest.raises(TrainingError, match=r"likelihood|gradient"):
        for name in pipeline.stages:
            pipeline.make(name)


def test_a_full_disk(tmp_path: Path) -> None:
    import errno

    with pytest.raises(StoreError, match="disk is full"), disk_errors("saving"):
        raise OSError(errno.ENOSPC, "No space left on device")


def test_a_damaged_artifact_is_found_and_named(fresh_home: Callable[[str], Path]) -> None:
    home = fresh_home("damaged")
    file = next(home.glob("store/model_policy-*/model.safetensors"))
    Pipeline.open("sft", home=home, profile="test").make("model_policy")
    good = file.read_bytes()
    file.write_bytes(good[:-1] + bytes([good[-1] ^ 1]))  # of the right size
    with pytest.raises(StoreError, match=r"model\.safetensors is damaged: its SHA-256"):
        Pipeline.open("sft", home=home, profile="test").make("model_policy")
    file.write_bytes(good)
    with file.open("ab") as handle:
        handle.write(b"x")
    with pytest.raises(StoreError, match=r"model\.safetensors is damaged"):
        Pipeline.open("sft", home=home, profile="test").make("model_policy")
