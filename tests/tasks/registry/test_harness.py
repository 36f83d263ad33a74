"""lm-evaluation-harness on a model directory against log-likelihoods computed with transformers."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from ratchet.components.errors import RecipeError
from ratchet.tasks.registry.harness import evaluate

ROWS = [{"question": "The quick", "choices": ["brown", "fox"], "answer": n % 2} for n in range(6)] + [
    {"question": "fox jumps", "choices": ["The", "quick"], "answer": 0},
    {"question": "brown fox", "choices": ["jumps", "brown"], "answer": 1},
]


@pytest.fixture
def model(tmp_path: Path) -> Path:
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    torch.manual_seed(0)
    LlamaForCausalLM(
        LlamaConfig(
            vocab_size=8,
            hidden_size=16,
            intermediate_size=16,
            num_hidden_layers=2,
            num_attention_heads=2,
            eos_token_id=1,
            bos_token_id=None,
            pad_token_id=0,
            initializer_range=1.0,
        )
    ).save_pretrained(tmp_path / "model")
    words = Tokenizer(
        models.WordLevel(
            {
                word: n
                for n, word in enumerate(["<pad>", "</s>", "The", "quick", "brown", "fox", "<unk>", "jumps"])
            },
            unk_token="<unk>",
        )
    )
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    PreTrainedTokenizerFast(
        tokenizer_object=words, eos_token="</s>", pad_token="<pad>", unk_token="<unk>"
    ).save_pretrained(tmp_path / "model")
    return tmp_path / "model"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A task over a local file."""
    (tmp_path / "tasks").mkdir()
    (tmp_path / "tasks" / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    (tmp_path / "tasks" / "local_words.yaml").write_text(f"""
task: local_words
dataset_path: json
dataset_kwargs: {{data_files: {{test: {tmp_path}/tasks/rows.jsonl}}}}
test_split: test
output_type: multiple_choice
doc_to_text: "{{{{question}}}}"
doc_to_choice: choices
doc_to_target: answer
metric_list: [{{metric: acc, aggregation: mean, higher_is_better: true}}]
""")
    return tmp_path / "tasks"


def accuracy(model: Path, rows: list[dict]) -> float:
    """Of choosing the word of the higher log-probability."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    policy, tokenizer, right = (
        AutoModelForCausalLM.from_pretrained(model),
        AutoTokenizer.from_pretrained(model),
        0,
    )
    for row in rows:
        with torch.no_grad():
            logits = policy(
                **tokenizer(row["question"], return_tensors="pt", return_token_type_ids=False)
            ).logits[0, -1]
        right += int(logits[tokenizer.convert_tokens_to_ids(row["choices"])].argmax()) == row["answer"]
    return right / len(rows)


@pytest.mark.slow
def test_a_task_over_a_local_file_is_scored_as_transformers_scores_it(
    model: Path, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("lm_eval")
    import datasets

    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    (score,) = evaluate(str(model), ["local_words"], home=tmp_path, folder=folder, chat=False)
    expected = accuracy(model, ROWS)
    assert (score.task, score.metric, score.value, score.n) == ("local_words", "acc", expected, len(ROWS))
    wide = 1.96 * (expected * (1 - expected) / (len(ROWS) - 1)) ** 0.5
    assert (score.low, score.high) == pytest.approx((expected - wide, expected + wide))
    (first,) = evaluate(str(model), ["local_words"], home=tmp_path, folder=folder, chat=False, limit=2)
    assert first.n == 2 and first.value == accuracy(model, ROWS[:2])
    with pytest.raises(RecipeError, match="local_wrods"):
        evaluate(str(model), ["local_wrods"], home=tmp_path, folder=folder)


def test_missing_lm_eval_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(RecipeError, match=r"\[lm-eval\]"):
        evaluate("model", ["ifeval"], home=tmp_path)
