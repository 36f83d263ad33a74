"""Properties of every loss on a tiny learner (a bigram table of logits): invariances, limits, gradients."""

import math

import pytest
import torch

from ratchet.components.errors import RecipeError
from ratchet.components.models.outputs import SHAPES
from ratchet.components.piece import build, catalogue, describe
from ratchet.components.training.objectives import parts
from ratchet.components.training.reduce import LEGAL, Counts, count, legal, reduce
from ratchet.components.types import Batch, Outputs

V = 11
PIECES = sorted(
    name
    for name, piece in catalogue("objective").items()
    if not any(option.required for option in piece.options.values())
)
NAMES = [name if name != "fixed_length" else "fixed_length:16" for name in LEGAL]
LEGAL_PAIRS = [(p, r) for p in PIECES for r in NAMES if legal(r, describe("objective", p).unit) is None]
OPTIONS = {"d3po": {"epsilon": 0.999}}  # random ratios are outside of the default clip, without gradient
LENGTHS = [(5, 2), (9, 4), (3, 3), (7, 1), (8, 5), (4, 2), (6, 3), (9, 9)]  # of a row: tokens, chosen ones


class Bigram(torch.nn.Module):
    """A bigram language model: logits of the next token given the last one; value and score from embeddings.
    Output t belongs to token t. Further outputs
    of `piece` are made up from their declared shapes.
    """

    def __init__(self, piece=None):
        super().__init__()
        torch.manual_seed(0)
        self.table = torch.nn.Parameter(torch.randn(V, V, dtype=torch.float64))
        self.head = torch.nn.Parameter(torch.randn(V, dtype=torch.float64))
        self.shapes = SHAPES | (dict(describe("objective", piece).readers) if piece else {})
        self.vectors = torch.nn.Parameter(torch.randn(V, 3, dtype=torch.float64))

    def forward(self, batch):
        shape = batch.mask.shape
        tokens = torch.zeros(shape, dtype=torch.long)
        for i, row in enumerate(batch.inputs["tokens"]):
            tokens[i, : len(row)] = row
        before = tokens.roll(1, 1)
        before[:, 0] = 0  # nothing comes before the first step
        logp = self.table[before].log_softmax(-1)
        chosen = logp.gather(-1, tokens[..., None])[..., 0]
        of_shape = {
            "step": chosen + self.head[before].clamp(max=0),  # negative, as a log-prob is
            "row": (self.head[tokens] * batch.mask).sum(-1),
            "vector": (self.vectors[tokens] * batch.mask[..., None]).sum(1),
        }
        return Outputs(
            {name: of_shape[shape] for name, shape in self.shapes.items()}
            | {
                "logprobs": chosen,
                "entropy": -(logp.exp() * logp).sum(-1),
                "values": self.head[before],
            }
        )


def make_batch(rows, seed=0, garbage=0.0, read=frozenset()):
    """Rows `rows` of a fixed data set of 8, independent of how it is split. `garbage` fills masked positions;
    `read` adds per-token columns.
    """
    rng = torch.Generator().manual_seed(seed)
    width = max(LENGTHS[i][0] for i in rows)
    tokens, mask, columns = [], [], {}
    names = ("logprobs.old", "logprobs.sampled", "logprobs.reference", "advantages", "returns", "values.old")
    full = {name: torch.randn(8, 9, generator=rng, dtype=torch.float64) for name in names}
    ids = torch.randint(0, V, (8, 9), generator=rng)
    margins = torch.rand(8, generator=rng, dtype=torch.float64)
    for i in rows:
        length, chosen = LENGTHS[i]
        tokens.append(ids[i, :length])
        mask.append([length - chosen <= t < length for t in range(width)])
    mask = torch.tensor(mask)
    for name in names:
        columns[name] = torch.where(
            mask, full[name][rows, :width] - (1 if "logprobs" in name else 0), garbage
        )
    columns["margin"] = margins[rows]
    columns |= {
        "label": (margins > 0.5).double()[rows],
        "reference_point": torch.full((len(rows),), 0.3, dtype=torch.float64),
    }
    for name in sorted(read - set(columns)):
        columns[name] = torch.where(
            mask, torch.rand(8, 9, generator=rng, dtype=torch.float64)[rows, :width], garbage
        )
    columns["some"] = (torch.rand(8, 9, generator=rng) < 0.6)[rows, :width].double()
    columns["all"] = torch.ones(len(rows), width)
    columns["some rows"] = torch.tensor([1.0, 1, 0, 1, 1, 1, 1, 0])[rows]
    group = torch.tensor([i // 2 for i in rows])
    return Batch({"tokens": tokens}, mask, columns, group, group - group.min(), tuple(str(i) for i in rows))


def step(piece, reduction, cuts, **keys):
    """Loss and gradient of one step whose rows are split into `cuts` micro-batches."""
    model = Bigram(piece)
    keys = {**OPTIONS.get(piece, {}), **keys}
    (part,) = parts([{"name": piece, "weight": 1.0, "reduce": reduction, "label": piece, **keys}])
    batches = [make_batch(rows, read=describe("objective", piece).named("reads", {})) for rows in cuts]
    totals = sum((count(part.restricted(b), part.unit) for b in batches), Counts(part.unit))
    loss = 0.0
    for batch in batches:
        mine = part.restricted(batch)
        share = reduce(reduction, part.objective(model(batch), mine).loss, mine, totals)
        share.backward()
        loss += float(share.detach())
    return loss, [p.grad.clone() if p.grad is not None else torch.zeros_like(p) for p in model.parameters()]


@pytest.mark.parametrize(("piece", "reduction"), LEGAL_PAIRS)
def test_where_of_ones_changes_nothing(piece, reduction):
    plain, ones, some = (
        step(piece, reduction, [list(range(8))], **keys) for keys in ({}, {"where": "all"}, {"where": "some"})
    )
    assert ones[0] == plain[0] and ones[0] != some[0]
    torch.testing.assert_close(ones[1], plain[1], rtol=0, atol=0)


@pytest.mark.parametrize("where", [None, "some", "some rows"])
@pytest.mark.parametrize(("piece", "reduction"), LEGAL_PAIRS)
def test_loss_is_independent_of_microbatch_splits(piece, reduction, where):
    keys = {} if where is None else {"where": where}
    pairs = describe("objective", piece).unit in ("pair", "group")
    smallest = [[2 * i, 2 * i + 1] for i in range(4)] if pairs else [[i] for i in range(8)]
    whole = step(piece, reduction, [list(range(8))], **keys)
    assert math.isfinite(whole[0])
    assert any(g.abs().sum() > 0 for g in whole[1])
    for cuts in (smallest, [[0, 1, 2, 3], [4, 5, 6, 7]], [[0, 1], [2, 3, 4, 5, 6, 7]]):
        loss, gradient = step(piece, reduction, cuts, **keys)
        assert loss == pytest.approx(whole[0], rel=1e-10, abs=1e-12)
        torch.testing.assert_close(gradient, whole[1], rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("piece", PIECES)
@pytest.mark.parametrize("garbage", [999.0, -1e5])
def test_masked_tokens_do_not_affect_the_loss(piece, garbage):
    unit = describe("objective", piece).unit
    objective = build("objective", {"name": piece, **OPTIONS.get(piece, {})})
    reduction = next(r for p, r in LEGAL_PAIRS if p == piece)
    found = []
    for fill in (0.0, garbage):
        batch, model = (
            make_batch(list(range(8)), garbage=fill, read=describe("objective", piece).named("reads", {})),
            Bigram(piece),
        )
        out = model(batch)
        outputs = {
            name: torch.where(batch.mask, v, fill) if model.shapes[name] == "step" else v
            for name, v in out.by_name.items()
        }
        loss = reduce(reduction, objective(Outputs(outputs), batch).loss, batch, count(batch, unit))
        loss.backward()
        found.append(
            (float(loss.detach()), [torch.zeros(1) if p.grad is None else p.grad for p in model.parameters()])
        )
    assert found[0][0] == pytest.approx(found[1][0], rel=1e-9)
    torch.testing.assert_close(found[0][1], found[1][1], rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(
    ("piece", "expected"), [("dpo", math.log(2)), ("cdpo", math.log(2)), ("ipo", 25.0), ("hinge", 1.0)]
)
def test_policy_equal_to_reference(piece, expected):
    batch = make_batch(list(range(8)))
    terms = build("objective", {"name": f"preference.{piece}"})(
        Outputs({"logprobs": batch["logprobs.reference"]}), batch
    )
    torch.testing.assert_close(terms.loss, torch.full((4,), expected, dtype=torch.float64))
    assert terms.metrics["accuracy"].tolist() == [0.5] * 4


@pytest.mark.parametrize(
    "piece",
    [
        "preference.dpo",
        "preference.ipo",
        "preference.cdpo",
        "preference.hinge",
        "preference.orpo",
        "ranking.bradley_terry",
        "ranking.length_controlled",
    ],
)
def test_swapping_a_pair_mirrors_the_margin(piece):
    rows = list(range(8))
    swapped = [i ^ 1 for i in rows]
    model, objective = Bigram(), build("objective", {"name": piece})
    one, other = (objective(model(b), b) for b in (make_batch(rows), make_batch(swapped)))
    torch.testing.assert_close(one.metrics["margin"], -other.metrics["margin"])
    torch.testing.assert_close(one.metrics["accuracy"], 1 - other.metrics["accuracy"])
    if piece in ("preference.dpo", "ranking.bradley_terry"):  # -log sigmoid(z) and -log sigmoid(-z)
        torch.testing.assert_close(
            (-one.loss).exp() + (-other.loss).exp(), torch.ones(4, dtype=torch.float64)
        )


@pytest.mark.parametrize("piece", ["clip", "cispo"])
def test_on_policy_gradient_equals_reinforce(piece):
    batch, gradients = make_batch(list(range(8))), []
    for name in (piece, "reinforce"):
        model = Bigram()
        out = model(batch)
        batch.columns["logprobs.old"] = out.logprobs.detach()
        terms = build("objective", {"name": name})(out, batch)
        reduce("token_mean", terms.loss, batch, count(batch, "step")).backward()
        gradients.append(model.table.grad)
    torch.testing.assert_close(*gradients)


def test_per_sequence_number_is_shared_by_its_tokens():
    batch = make_batch(list(range(8)))
    rows = torch.linspace(-1, 1, 8, dtype=torch.float64)
    out, objective = Bigram()(batch), build("objective", {"name": "clip"})
    batch.columns["advantages"] = rows
    one = objective(out, batch).loss
    batch.columns["advantages"] = torch.where(batch.mask, rows[:, None], 0.0)
    torch.testing.assert_close(one, objective(out, batch).loss)


def test_k2_and_k3_estimate_the_kl_that_enumeration_gives():
    """Under samples of pi the mean of k1 and of k3 is KL(pi || ref) exactly: summed over all tokens with
    their probability.
    """
    torch.manual_seed(1)
    p, q = (
        torch.randn(V, dtype=torch.float64).log_softmax(-1),
        torch.randn(V, dtype=torch.float64).log_softmax(-1),
    )
    rows = torch.arange(V)
    batch = Batch(
        {}, torch.ones(V, 1, dtype=torch.bool), {"logprobs.reference": q[:, None]}, rows, rows, ("",) * V
    )
    exact = (p.exp() * (p - q)).sum()
    for estimator in ("k1", "k3"):
        loss = build("objective", {"name": "kl", "estimator": estimator})(
            Outputs({"logprobs": p[:, None]}), batch
        ).loss[:, 0]
        torch.testing.assert_close((p.exp() * loss).sum(), exact)


def test_gradients_of_the_kl_estimators_as_losses():
    """Under samples of pi the gradient of k1 is 0 on average, of k2 that of KL(pi || ref), of k3 that of
    KL(ref || pi): summed over all tokens with their probability, which is not differentiated.
    """
    torch.manual_seed(2)
    logits = torch.randn(V, dtype=torch.float64, requires_grad=True)
    p, q = logits.log_softmax(-1), torch.randn(V, dtype=torch.float64).log_softmax(-1)
    rows = torch.arange(V)
    batch = Batch(
        {}, torch.ones(V, 1, dtype=torch.bool), {"logprobs.reference": q[:, None]}, rows, rows, ("",) * V
    )
    truths = {"k1": 0 * p.sum(), "k2": (p.exp() * (p - q)).sum(), "k3": (q.exp() * (q - p)).sum()}
    for estimator, truth in truths.items():
        terms = build("objective", {"name": "kl", "estimator": estimator})(
            Outputs({"logprobs": p[:, None]}), batch
        )
        expected, found = (
            torch.autograd.grad(x, logits, retain_graph=True)[0]
            for x in (truth, (p.detach().exp() * terms.loss[:, 0]).sum())
        )
        torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("name", ["centre", "group_norm", "leave_one_out", "whiten"])
def test_constant_group_has_zero_advantage(name):
    from ratchet.components.types import Context, Group, Prompt, Trajectory

    group = Group(
        Prompt("p", ()), tuple(Trajectory(()) for _ in range(4)), {"reward.reward_model": [0.3] * 4}
    )
    assert build("annotate", {"name": f"advantages.{name}"})([group], Context())["advantages"][
        0
    ] == pytest.approx([0.0] * 4, abs=1e-15)


def test_illegal_reductions_are_recipe_errors():
    assert "unit_mean" in legal("token_mean", "pair")
    assert legal("row_sum", "step") is None
    for bad in ("tokenmean", "fixed_length", "fixed_length:0", "row_mean:3"):
        with pytest.raises(RecipeError):
            legal(bad, "step")
    batch = make_batch([0, 1])
    with pytest.raises(RecipeError, match="one per pair"):
        reduce("token_mean", torch.zeros(1), batch, count(batch, "pair"))


@pytest.mark.parametrize(("temperature", "cut", "exact"), [(1.0, 0, True), (0.7, 0, False), (1.0, 2, False)])
def test_policy_gradient_is_unbiased_only_on_policy_samples(
    temperature: float, cut: int, exact: bool
) -> None:
    """Exact expectation over all tokens: the gradient that sampling estimates against that of the expected
    reward. This is why `components/recipes/check.py` refuses temperature, top-p or top-k with a policy
    gradient.
    """
    logits = torch.tensor([0.3, -1.0, 0.8, 0.1, -0.4], dtype=torch.float64, requires_grad=True)
    reward, n = torch.tensor([1.0, -0.5, 0.2, 2.0, 0.0], dtype=torch.float64), 5
    scaled = logits / temperature
    drawn = (
        scaled if not cut else scaled.masked_fill(scaled < scaled.topk(cut).values[-1], -torch.inf)
    ).softmax(0)
    (truth,) = torch.autograd.grad((drawn * reward).sum(), logits, retain_graph=True)
    rows = torch.arange(n)
    batch = Batch(
        {}, torch.ones(n, 1, dtype=torch.bool), {"advantages": reward[:, None]}, rows, rows, ("",) * n
    )
    loss = build("objective", {"name": "reinforce"})(
        Outputs({"logprobs": logits.log_softmax(0)[:, None]}), batch
    ).loss[:, 0]
    (estimate,) = torch.autograd.grad((drawn.detach() * loss).sum(), logits)
    assert torch.allclose(-estimate, truth) == exact
