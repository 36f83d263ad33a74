"""Pieces against published numbers in `losses.yaml`."""

import doctest
import importlib
from itertools import pairwise
from pathlib import Path

import pytest
import torch
import yaml

from ratchet.components.inference.sampling import sample
from ratchet.components.models.outputs import SHAPES
from ratchet.components.piece import build, catalogue, describe
from ratchet.components.pieces.advantages.gae import recursion
from ratchet.components.training.objectives import parts
from ratchet.components.training.packing import pack
from ratchet.components.training.reduce import count, reduce
from ratchet.components.types import Batch, Context, Group, Outputs, Prompt, Trajectory

ORACLES = yaml.safe_load((Path(__file__).parent / "losses.yaml").read_text())
DTYPES = {"float32": torch.float32, "float64": torch.float64}


def padded(rows, dtype, width=None):
    width = width or max(map(len, rows))
    return torch.tensor([[*row, *([0] * (width - len(row)))] for row in rows], dtype=dtype)


def batch_of(case, dtype):
    shapes = SHAPES | (dict(describe("objective", case["piece"]).readers) if "piece" in case else {})
    steps = next((case[k] for k, shape in shapes.items() if shape == "step" and k in case), None)
    mask = case.get("mask") or ([[True] * len(r) for r in steps] if steps else [[True]] * len(case["scores"]))
    columns = {
        k: padded(v, dtype) if isinstance(v[0], list) else torch.tensor(v, dtype=dtype)
        for k, v in case.get("columns", {}).items()
    }
    outputs = {
        k: padded(case[k], dtype) if shape == "step" else torch.tensor(case[k], dtype=dtype)
        for k, shape in shapes.items()
        if k in case
    }
    rows = torch.arange(len(mask))
    return Outputs(outputs), Batch(
        {}, padded(mask, torch.bool), columns, rows, rows, tuple(map(str, range(len(mask))))
    )


@pytest.mark.parametrize("precision", DTYPES)
@pytest.mark.parametrize("case", ORACLES["cases"], ids=lambda c: c["name"])
def test_objective(case, precision):
    dtype, tolerance = DTYPES[precision], ORACLES["tolerance"][precision]
    out, batch = batch_of(case, dtype)
    terms = build("objective", {"name": case["piece"], **case.get("options", {})})(out, batch)
    close = {"rtol": tolerance, "atol": tolerance}
    loss = torch.where(batch.mask, terms.loss, 0.0) if terms.loss.shape == batch.mask.shape else terms.loss
    torch.testing.assert_close(loss, torch.tensor(case["loss"], dtype=dtype), **close)
    for name, expected in case.get("metrics", {}).items():
        torch.testing.assert_close(terms.metrics[name], torch.tensor(expected, dtype=dtype), **close)
    for name, expected in case.get("reduced", {}).items():
        value = reduce(name, terms.loss, batch, count(batch, describe("objective", case["piece"]).unit))
        assert float(value) == pytest.approx(expected, rel=tolerance, abs=tolerance)


def examples(name):
    """Number of doctest examples in an objective's docstring, after checking them. In scope: `torch`,
    `Outputs`, `batch` (one row of two tokens).
    """
    row = torch.zeros(1, dtype=torch.long)
    batch = Batch({}, torch.ones(1, 2, dtype=torch.bool), {}, row, row, ("p",))
    piece = getattr(
        importlib.import_module(describe("objective", name).module), describe("objective", name).function
    )
    known = {"torch": torch, "Outputs": Outputs, "batch": batch, piece.__name__: piece}
    test = doctest.DocTestParser().get_doctest(piece.__doc__, known, name, None, None)
    found = doctest.DebugRunner(optionflags=doctest.NORMALIZE_WHITESPACE).run(test, clear_globs=False)
    return found.attempted


@pytest.mark.parametrize("name", catalogue("objective"))
def test_every_objective_has_an_oracle(name):
    assert examples(name) or name in {case["piece"] for case in ORACLES["cases"]}, (
        "work a number: an example in its docstring, or a case"
    )


def test_every_case_is_of_an_objective():
    assert {case["piece"] for case in ORACLES["cases"]} <= set(catalogue("objective"))


@pytest.mark.parametrize("case", ORACLES["sums"], ids=lambda c: c["name"])
def test_sum_of_parts(case):
    out, batch = batch_of(case, torch.float64)
    built = parts([{"weight": 1.0, "label": spec["name"], **spec} for spec in case["parts"]])
    total = sum(
        part.weight * reduce(part.reduce, part(out, batch).loss, batch, count(batch, part.unit))
        for part in built
    )
    assert float(total) == pytest.approx(case["expected"], abs=1e-6)


def group_of(rewards, **columns):
    rows = tuple(
        Trajectory(({"role": "assistant", "content": "x"},), {"tokens": [1]}, [True]) for _ in rewards
    )
    return Group(Prompt("p", ()), rows, {"reward.reward_model": rewards, **columns})


@pytest.mark.parametrize("case", ORACLES["advantages"], ids=lambda c: f"{c['piece']} {c['rewards']}")
def test_advantages(case):
    written = build("annotate", {"name": case["piece"]})([group_of(case["rewards"])], Context())
    assert written["advantages"][0] == pytest.approx(case["expected"], abs=4e-6)


def test_whitening_is_over_all_groups():
    """Of 0, 1 and 2, 3 the mean is 3/2 and the sample deviation the root of 5/3, whatever the groups."""
    written = build("annotate", {"name": "advantages.whiten"})(
        [group_of([0.0, 1.0]), group_of([2.0, 3.0])], Context()
    )
    assert written["advantages"] == [
        pytest.approx([-1.161895, -0.387298], abs=1e-6),
        pytest.approx([0.387298, 1.161895], abs=1e-6),
    ]


@pytest.mark.parametrize("case", ORACLES["gae"], ids=lambda c: c["source"])
def test_gae(case):
    mask = case.get("mask", [True] * len(case["values"]))
    advantages, returns = recursion(case["rewards"], case["values"], mask, case["gamma"], case["gae_lambda"])
    assert advantages == pytest.approx(case["advantages"], abs=1e-6)
    if "returns" in case:
        assert returns == pytest.approx(case["returns"], abs=1e-6)


def test_kl_in_reward():
    case = ORACLES["kl_in_reward"]
    rows = tuple(Trajectory((), {"tokens": [1, 2, 3]}, [True] * 3, [kl] * 3) for kl in case["kl"])
    group = Group(
        Prompt("p", ()), rows, {"reward.reward_model": case["scores"], "logprobs.reference": [[0.0] * 3] * 3}
    )
    shaped = build("annotate", {"name": "advantages.kl_in_reward", "beta": case["beta"]})([group], Context())[
        "shaped"
    ][0]
    for row, expected in zip(shaped, case["expected"], strict=True):
        assert row == pytest.approx(expected)
    summed = build("annotate", {"name": "advantages.kl_in_reward.row", "beta": case["beta"]})(
        [group], Context()
    )["regularised"][0]
    assert summed == pytest.approx([sum(row) for row in case["expected"]])


@pytest.mark.parametrize(
    "case",
    ORACLES["rewards"],
    ids=lambda c: f"{c['piece']} {c.get('length', c.get('tokens'))} {c['expected']}",
)
def test_rewards(case):
    tokens = case.get("tokens") or list(range(case["length"]))
    text = "the answer is 4" if case.get("answer") == "right" else "the answer is 5"
    row = Trajectory(
        ({"role": "assistant", "content": text},),
        {"tokens": [0, 0, *tokens]},
        [False, False] + [True] * len(tokens),
    )
    written = build("annotate", {"name": case["piece"], **case["options"]})(
        [Group(Prompt("p", (), answer="4"), (row,))], Context()
    )
    (name,) = [n for n in written if not n.endswith(".status")]
    assert written[f"{name}.status"] == [["ok"]]
    assert written[name][0] == pytest.approx([case["expected"]], abs=1e-6)


@pytest.mark.parametrize("case", ORACLES["importance"], ids=lambda c: c["source"])
def test_importance(case):
    row = Trajectory((), {"tokens": [0, 1, 2]}, [True] * 3, case["sampled"])
    group = Group(Prompt("p", ()), (row,), {"logprobs.old": [case["old"]]})
    written = build("annotate", {"name": "scoring.importance", "cap": case["cap"], "limit": 2.0})(
        [group], Context()
    )
    assert written["importance"][0][0] == pytest.approx(case["expected"], abs=1e-6)


@pytest.mark.parametrize("case", ORACLES["temperature"], ids=lambda c: c["temperature"])
def test_temperature(case):
    """Numbers drawn just under and just over the likelier token's share take it and the other one."""
    uniforms = torch.tensor([case["expected"] - 2e-6, case["expected"] + 2e-6], dtype=torch.float64)
    logits = torch.tensor([[1.0, 1.0], [0.0, 0.0]])
    tokens, _ = sample(
        logits,
        uniforms,
        torch.full((2,), case["temperature"]),
        torch.zeros(2, dtype=torch.long),
        torch.ones(2),
    )
    assert tokens.tolist() == [0, 1]


@pytest.mark.parametrize("case", ORACLES["packing"], ids=lambda c: c["source"])
def test_packing(case):
    groups = [
        Group(Prompt(str(i), ()), (Trajectory((), {"tokens": [i] * n}, [True] * n),))
        for i, n in enumerate(case["lengths"])
    ]
    batches = pack(groups, unit="row", tokens=case["capacity"])
    assert [i for batch in batches for i in batch.ids] == [str(i) for i in range(len(groups))]
    token_counts = [[len(tokens) for tokens in batch.inputs["tokens"]] for batch in batches]
    assert [n for lengths in token_counts for n in lengths] == case["lengths"]
    assert all(sum(lengths) <= case["capacity"] or len(lengths) == 1 for lengths in token_counts)
    assert all(
        sum(lengths) + after[0] > case["capacity"] for lengths, after in pairwise(token_counts)
    )  # none is begun before the last is full
