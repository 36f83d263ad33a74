"""Slices of an engine's calls in one process: equal results, kept and read again."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from ratchet.components.inference.torch import TorchEngine
from ratchet.components.models.load import load_model, load_tokenizer, save_model
from ratchet.components.models.tiny import train_tiny
from ratchet.components.recipes.plain_values import plain
from ratchet.components.recipes.profile import Profile, Vllm, engine_processes
from ratchet.components.stages import shards
from ratchet.components.stages.shards import ShardedEngine, sharded_engine, sharding
from ratchet.components.stages.slices import split
from ratchet.components.training.packing import pack
from ratchet.components.types import Group, Prompt, Request, Trajectory

PROFILE = plain(Profile(threads=1, max_num_seqs=8))


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tiny")
    train_tiny(path, steps=2, hidden=64, layers=2, batch=8)
    return path


@pytest.fixture
def engine(tiny: Path, tmp_path: Path) -> Iterator[Any]:
    with sharding("rollout", tmp_path):
        yield sharded_engine(PROFILE, tiny)


def requests(engine: Any, count: int = 3) -> list[Request]:
    texts = [f"What is {i} + {7 * i}?" + " please" * (i % 3) for i in range(7)]
    prompts = [engine.encode_prompt(Prompt("", ({"role": "user", "content": text},))) for text in texts]
    return [Request(tokens, count=count, max_tokens=12, seed=i) for i, tokens in enumerate(prompts)]


@pytest.mark.parametrize("costs", [[], [1], [4] * 7, [1, 50, 1, 1], list(range(1, 30))])
@pytest.mark.parametrize("number", [1, 2, 3, 100])
def test_split_makes_contiguous_ranges_of_every_item(costs: list[int], number: int) -> None:
    ranges = split(costs, number)
    assert [i for first, end in ranges for i in range(first, end)] == list(range(len(costs)))
    assert all(first < end for first, end in ranges) and len(ranges) <= number


def test_split_balances_costs() -> None:
    assert split([4] * 96, 2) == [(0, 48), (48, 96)]
    assert split([1, 1, 1, 3, 3, 3], 2) == [(0, 4), (4, 6)]


def test_generation_equals_that_of_the_slices_alone(engine: Any, tiny: Path, tmp_path: Path) -> None:
    """7 prompts of 3 answers, at most 8 at a time: 3 slices."""
    asked, alone = requests(engine), TorchEngine(tiny, rows=8, threads=1)
    expected = [samples for first, end in split([3] * 7, 3) for samples in alone.generate(asked[first:end])]
    assert engine.generate(asked) == expected and engine.generate([]) == []
    assert len(list((tmp_path / shards.FOLDER).iterdir())) == 3
    assert engine.weights == alone.weights and engine.decode([5, 6]) == alone.decode([5, 6])


def test_scores_equal_the_engines_bit_for_bit(engine: Any, tiny: Path, tmp_path: Path) -> None:
    """Slices end where micro-batches do, also within a group."""
    answers = [
        Trajectory(({"role": "assistant", "content": f"{chr(97 + i)} word " * 20},)) for i in range(23)
    ]
    groups = [
        Group(Prompt(str(i), ({"role": "user", "content": f"{i}?"},)), tuple(answers)) for i in range(4)
    ]
    groups.insert(1, Group(Prompt("none", ({"role": "user", "content": "hi"},)), ()))
    outputs = frozenset({"logprobs", "entropy"})
    assert engine.score(groups, outputs) == TorchEngine(tiny, threads=1).score(groups, outputs)
    batches = sum(1 for _ in pack([engine.encode(g) for g in groups], unit="row", tokens=2048))
    assert 1 < batches <= shards.LEAST_SLICES
    assert len(list((tmp_path / shards.FOLDER).iterdir())) == batches  # work for as many engines
    assert engine.score([], outputs) == []


def test_finished_slices_are_read_and_damaged_ones_computed_again(
    engine: Any, tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = requests(engine)
    expected = engine.generate(asked)
    files = sorted((tmp_path / shards.FOLDER).iterdir())
    files[0].write_text(files[0].read_text()[:40])  # torn
    computed: list[int] = []
    generate = TorchEngine.generate
    monkeypatch.setattr(
        TorchEngine, "generate", lambda self, some: computed.append(len(some)) or generate(self, some)
    )
    with sharding("rollout", tmp_path):
        again = sharded_engine(PROFILE, tiny)
        assert again.generate(asked) == expected and len(computed) == 1
        assert (
            again.generate([Request(asked[0].tokens, count=3, max_tokens=12, seed=99)]) and len(computed) == 2
        )


def test_another_stage_or_other_weights_do_not_use_the_slices(
    engine: Any, tiny: Path, tmp_path: Path
) -> None:
    engine.generate(requests(engine))
    before = len(list((tmp_path / shards.FOLDER).iterdir()))
    engine.weights = "other"
    engine.generate(requests(engine))
    assert len(list((tmp_path / shards.FOLDER).iterdir())) == 2 * before
    with sharding("improve", tmp_path):
        assert isinstance(sharded_engine(PROFILE, tiny), TorchEngine)
    assert isinstance(engine, ShardedEngine) and engine.model is engine.local.model


def test_models_that_differ_in_a_head_alone_do_not_share_slices(tiny: Path, tmp_path: Path) -> None:
    """Critics, whose value head is beside the safetensors files. A mean-pooled reward model is saved so too
    if its architecture has no token classifier.
    """
    group = Group(
        Prompt("", ({"role": "user", "content": "hi"},)),
        (Trajectory(({"role": "assistant", "content": "no, never"},)),),
    )
    model: Any = load_model(tiny, "policy_with_value")
    paths = [tmp_path / "one", tmp_path / "other"]
    for path, bias in zip(paths, (1.0, 2.0), strict=True):
        torch.nn.init.constant_(model.value_head.bias, bias)
        save_model(model, load_tokenizer(tiny), path)
    with sharding("annotate", tmp_path):
        engines = [sharded_engine(PROFILE, path, "policy_with_value") for path in paths]
        values = [set(engine.score([group], frozenset({"values"}))[0]["values"][0]) for engine in engines]
    assert values == [{0.0, 1.0}, {0.0, 2.0}]


@pytest.mark.parametrize(
    ("profile", "expected"),
    [
        (Profile(), 1),
        (Profile(engines=3), 3),
        (Profile(learner="deepspeed", ranks=8), 8),
        (Profile(learner="deepspeed", ranks=32, machines=4), 8),
        (Profile(learner="deepspeed", ranks=8, engines=2), 2),
        (Profile(learner="deepspeed", ranks=8, engine="vllm", vllm=Vllm(tensor_parallel=2)), 4),
        (Profile(learner="deepspeed", ranks=8, engine="vllm", vllm=Vllm(server="http://there")), 1),
    ],
)
def test_number_of_engine_processes(profile: Profile, expected: int) -> None:
    assert engine_processes(plain(profile)) == expected
