"""KTO from labelled rows to a training step: mismatched answers, reference point over the whole step,
learning.
"""

from __future__ import annotations

import copy
import dataclasses
import threading
from collections import Counter
from pathlib import Path

import pytest
import torch

from ratchet.components.data.builders import labelled_answers
from ratchet.components.data.curate import curate
from ratchet.components.data.groups import read_groups, write_groups
from ratchet.components.data.pair_builders import preference_pairs
from ratchet.components.data.parsing import parse
from ratchet.components.errors import DataError, TrainingError
from ratchet.components.piece import build
from ratchet.components.recipes.sections import Labelled, Pairs
from ratchet.components.text.images import showing
from ratchet.components.training import ranks
from ratchet.components.training.objectives import Meter, parts
from ratchet.components.training.step_loss import measure
from ratchet.components.types import Context, Group, Outputs, Prompt, Trajectory

LABELS = [True, False, True, True, False, False]


def answered(number: int, label: bool, prompt: int | None = None) -> Group:
    """A prompt of 2 tokens and an answer of `number` + 1."""
    tokens = [90, 10 + (number if prompt is None else prompt), *range(30 + number, 31 + 2 * number)]
    messages = ({"role": "assistant", "content": f"answer {number}"},)
    return Group(
        Prompt(f"p{number}", ()),
        (Trajectory(messages, {"tokens": tokens}, [False] * 2 + [True] * (number + 1)),),
        {"label": [float(label)]},
    )


def prepared(**columns: list) -> list[Group]:
    """Six labelled answers with mismatched ones, whose log-probs under the reference are 0."""
    groups = build("select", {"name": "mismatched"})(
        [answered(i, label) for i, label in enumerate(LABELS)], Context(seed=3)
    )
    return [
        g.with_columns(**{"logprobs.reference": [[0.0] * len(t.mask) for t in g.trajectories]}, **columns)
        for g in groups
    ]


def test_mismatched_answers_have_no_loss() -> None:
    groups = [answered(i, label) for i, label in enumerate(LABELS)]
    counts: Counter[str] = Counter()
    result = build("select", {"name": "mismatched"})(groups, Context(seed=3, counts=counts))
    assert counts == {"answers with label true": 3, "answers with label false": 3}
    others = []
    for group, before in zip(result, groups, strict=True):
        own, other = group.trajectories
        assert own == before.trajectories[0] and group.columns == {
            "label": [before.columns["label"][0], None],
            "trained": [True, False],
        }
        assert list(other.inputs["tokens"])[:2] == list(own.inputs["tokens"])[:2] and list(other.mask)[
            :2
        ] == [False, False]
        assert other.text != own.text and len(other.mask) == len(other.inputs["tokens"]) <= 8
        source = next(g for g in groups if g.trajectories[0].text == other.text)
        assert list(other.inputs["tokens"])[2:] == list(source.trajectories[0].inputs["tokens"])[2:]
        others.append(other.text)
    assert len(set(others)) == 6, "the mismatched answers are the matched ones, as in the paper"
    again = build("select", {"name": "mismatched"})(groups, Context(seed=4))
    assert [g.trajectories[1].text for g in again] != others


def test_single_prompt_has_no_reference_point() -> None:
    with pytest.raises(DataError, match="3 answers"):
        build("select", {"name": "mismatched"})([answered(i, True, prompt=0) for i in range(3)], Context())
    same = [answered(0, True, 1), answered(1, False, 1), answered(2, True, 2)]
    result = build("select", {"name": "mismatched"})(same, Context())
    assert [g.trajectories[1].text for g in result][:2] == ["answer 2"] * 2, (
        "never the other answer to its own prompt"
    )


def test_one_question_about_two_images_is_two_prompts() -> None:
    about = [
        dataclasses.replace(group, prompt=showing(group.prompt.id, [image]))
        for group, image in zip([answered(i, True, prompt=0) for i in range(3)], "aab", strict=True)
    ]
    result = build("select", {"name": "mismatched"})(about, Context())
    assert [g.trajectories[1].text for g in result][:2] == ["answer 2"] * 2
    assert result[2].trajectories[1].text in ("answer 0", "answer 1")


class Table:
    """log p of a token is theta * (token + position) / 100: one trainable number, hand-computable outputs."""

    def __init__(self, theta: float) -> None:
        self.theta = torch.tensor(theta, dtype=torch.float64, requires_grad=True)
        self.rows: list[list[int]] = []

    def __call__(self, batch, outputs):
        assert outputs == {"logprobs"}
        self.rows += [row.tolist() for row in batch.inputs["tokens"]] if torch.is_grad_enabled() else []
        steps = torch.zeros(batch.mask.shape, dtype=torch.float64)
        for i, row in enumerate(batch.inputs["tokens"]):
            steps[i, : len(row)] = (row + torch.arange(len(row))) / 100
        return Outputs({"logprobs": self.theta * steps})

    def backward(self, loss):
        loss.backward()


def ratio(theta: float, path: Trajectory) -> float:
    return theta * sum(
        (token + place) / 100
        for place, (token, mine) in enumerate(zip(path.inputs["tokens"], path.mask, strict=True))
        if mine
    )


@pytest.mark.parametrize("tokens", [1, 9, 1000])
@pytest.mark.parametrize("theta", [0.5, -0.5])
def test_reference_point_is_independent_of_microbatch_splits(theta: float, tokens: int) -> None:
    groups, learner, meter = prepared(), Table(theta), Meter()
    update = parts(
        [
            {
                "name": "kto",
                "beta": 0.7,
                "desirable": 1.5,
                "undesirable": 0.5,
                "weight": 1.0,
                "reduce": "unit_mean",
                "label": "kto",
            }
        ]
    )
    loss = measure(learner, update, groups, tokens=tokens, backward=True, meter=meter)  # type: ignore[arg-type]
    assert sorted(learner.rows) == sorted(list(g.trajectories[0].inputs["tokens"]) for g in groups), (
        "no gradient through a mismatched answer"
    )

    point = max(0.0, sum(ratio(theta, g.trajectories[1]) for g in groups) / 6)
    free = torch.tensor(theta, dtype=torch.float64, requires_grad=True)
    total = torch.zeros((), dtype=torch.float64)
    for group, label in zip(groups, LABELS, strict=True):
        r = free * ratio(1.0, group.trajectories[0])
        total = (
            total
            + (
                1.5 * (1 - torch.sigmoid(0.7 * (r - point)))
                if label
                else 0.5 * (1 - torch.sigmoid(0.7 * (point - r)))
            )
            / 6
        )
    total.backward()
    assert loss == pytest.approx(float(total.detach()), rel=1e-6) and float(
        learner.theta.grad
    ) == pytest.approx(float(free.grad), rel=1e-5)
    means = meter.means()
    assert means["kto/kl"] == pytest.approx(point, rel=1e-6) and (point > 0) == (theta > 0)
    assert means["kto/rewards/undesirable"] == pytest.approx(
        0.7
        * sum(ratio(theta, g.trajectories[0]) for g, good in zip(groups, LABELS, strict=True) if not good)
        / 3,
        rel=1e-6,
    )


def test_two_ranks_equal_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two threads as ranks; one has a third of the groups and repeats a batch with weight zero."""
    update = parts([{"name": "kto", "weight": 1.0, "reduce": "unit_mean", "label": "kto"}])
    alone, meter = Table(0.5), Meter()
    whole = measure(alone, update, prepared(), tokens=1, backward=True, meter=meter)  # type: ignore[arg-type]
    here, barrier, box = threading.local(), threading.Barrier(2, timeout=30), [None, None]

    def gather(value):
        box[here.rank] = copy.deepcopy(value)
        barrier.wait()
        both = list(box)
        barrier.wait()
        return both

    monkeypatch.setattr(ranks, "gather", gather)
    monkeypatch.setattr(
        ranks, "share", lambda items, cost: [i for i in range(len(items)) if (i % 3 == 0) == bool(here.rank)]
    )
    found: dict[int, tuple[float, float, dict[str, float]]] = {}

    def work(rank: int) -> None:
        here.rank = rank
        learner, mine = Table(0.5), Meter()
        loss = measure(learner, update, prepared(), tokens=1, backward=True, meter=mine)  # type: ignore[arg-type]
        found[rank] = loss, float(learner.theta.grad), mine.means()

    threads = [threading.Thread(target=work, args=(rank,)) for rank in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found[0][0] == found[1][0] == pytest.approx(whole) and found[0][2] == found[1][2] == pytest.approx(
        meter.means()
    )
    assert found[0][1] + found[1][1] == pytest.approx(float(alone.theta.grad))


def test_kto_learns_to_separate_desirable_answers() -> None:
    """A log-prob a token, normalised: after some steps the liked answers are likelier than under the
    reference, the others not.
    """
    groups, logits = prepared(), torch.zeros(100, requires_grad=True)

    class Unigram(Table):
        def __call__(self, batch, outputs):
            steps = torch.zeros(batch.mask.shape)
            for i, row in enumerate(batch.inputs["tokens"]):
                steps[i, : len(row)] = logits.log_softmax(0)[row]
            return Outputs({"logprobs": steps})

    start = -float(torch.tensor(100.0).log())
    groups = [
        g.with_columns(**{"logprobs.reference": [[start] * len(t.mask) for t in g.trajectories]})
        for g in groups
    ]
    update = parts([{"name": "kto", "weight": 1.0, "reduce": "unit_mean", "label": "kto"}])
    optimiser, lines = torch.optim.Adam([logits], lr=0.1), []
    for _ in range(60):
        optimiser.zero_grad()
        meter = Meter()
        loss = measure(Unigram(0.0), update, groups, tokens=99, backward=True, meter=meter)  # type: ignore[arg-type]
        lines.append({"loss": loss, **meter.means()})
        optimiser.step()
    assert (
        lines[0]["loss"] == pytest.approx(0.5) and lines[-1]["loss"] < 0.4 and lines[-1]["kto/accuracy"] > 0.8
    )
    assert lines[-1]["kto/rewards/desirable"] > 0 > lines[-1]["kto/rewards/undesirable"]


def test_a_step_without_mismatched_answers_is_refused() -> None:
    groups = [g.take([0]) for g in prepared()]
    update = parts([{"name": "kto", "weight": 1.0, "reduce": "unit_mean", "label": "kto"}])
    with pytest.raises(TrainingError, match="reference_point"):
        measure(Table(0.1), update, groups, tokens=99, backward=True, meter=Meter())  # type: ignore[arg-type]


# --- rows
# ----------------------------------------------------------------------------------------------------------


def rows(folder: Path, *lines: str) -> Path:
    path = folder / "data.jsonl"
    path.write_text("\n".join(lines) + "\n")
    return path


def count(messages) -> int:
    return sum(len(m["content"].split()) for m in messages)


LABELLED = [
    f'{{"prompt": "question {i}", "completion": "answer {i}", "label": {("false", "true")[i % 2]}}}'
    for i in range(8)
]
PAIRED = [f'{{"prompt": "question {i}", "chosen": "good {i}", "rejected": "bad {i}"}}' for i in range(8)]


def test_rows_with_a_label_become_single_answers_with_it(tmp_path: Path) -> None:
    chat = (
        '{"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}], '
        '"label": false}'
    )
    records = parse(rows(tmp_path, *LABELLED[:2], chat, PAIRED[0], '{"prompt": "q", "completion": "a"}')).kept
    result = labelled_answers(records, count, Labelled())
    assert [(g.trajectories[0].text, g.columns["label"]) for g in result.kept] == [
        ("answer 0", [0.0]),
        ("answer 1", [1.0]),
        ("a", [0.0]),
    ]
    assert [g.prompt.messages[-1]["content"] for g in result.kept] == ["question 0", "question 1", "q"]
    assert result.reasons() == {"a preference pair, not an answer with a label": 1, "it has no label": 1}
    assert preference_pairs(records, count, Pairs()).reasons() == {
        "a single labelled answer, not a pair": 3,
        "not a pair, and no topic to pair it by": 1,
    }


def test_a_groups_file_with_labels_keeps_them(tmp_path: Path) -> None:
    """Otherwise SFT would train on undesirable answers."""
    result = labelled_answers(parse(rows(tmp_path, *LABELLED)).kept, count, Labelled())
    again = parse(write_groups(tmp_path / "groups.parquet", result.kept)).kept
    assert [record.label for record in again] == [i % 2 == 1 for i in range(8)]
    assert read_groups(tmp_path / "groups.parquet")[0].columns == {"label": [0.0]}


@pytest.mark.parametrize(
    ("lines", "split", "message"),
    [
        (
            LABELLED,
            "reward",
            "data.splits.reward: expected preference pairs (chosen and rejected), got 8 single answers "
            "with a `label`; train on these "
            "with an objective of single answers and a split `labelled`",
        ),
        (
            PAIRED,
            "labelled",
            "data.splits.labelled: expected answers with a `label`, true or false, got 8 preference "
            "pairs; train on these with a pairwise objective",
        ),
        (
            ['{"prompt": "q 1", "completion": "a"}', '{"prompt": "q 2", "completion": "b"}'],
            "labelled",
            "got none; provide rows with prompt, completion and label",
        ),
    ],
)
def test_pairs_and_labels_are_distinguished(
    lines: list[str], split: str, message: str, tmp_path: Path
) -> None:
    with pytest.raises(DataError) as refused:
        curate(
            {"source": "path:x", "splits": {split: 1.0}}, rows(tmp_path, *lines), count, tmp_path / "out", 0
        )
    assert message in str(refused.value) and "\n" not in str(refused.value)
