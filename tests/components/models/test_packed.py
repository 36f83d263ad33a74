"""Packed forward pass against padded transformers; chunked log-probs against log_softmax."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM, Qwen2Config, Qwen2ForCausalLM

from ratchet.components.errors import ContractError
from ratchet.components.models import reading
from ratchet.components.models.attention import PackedPlan, register
from ratchet.components.models.attention_types import Variant
from ratchet.components.models.cached_attention import Cache, DecodePlan
from ratchet.components.models.forward import model_outputs
from ratchet.components.models.logprobs import chosen_logprobs
from ratchet.components.training.packing import pack
from ratchet.components.types import Group, Prompt, Trajectory

HUGE_PAGES = Path("/sys/kernel/mm/transparent_hugepage/enabled")
SIZES = dict(
    vocab_size=61,
    hidden_size=32,
    intermediate_size=48,
    num_hidden_layers=3,
    num_attention_heads=4,
    num_key_value_heads=2,
    tie_word_embeddings=True,
    pad_token_id=0,
)


def model(kind: str, attention: str) -> torch.nn.Module:
    register()
    torch.manual_seed(0)
    config = {"llama": LlamaConfig, "qwen2": Qwen2Config}[kind](**SIZES, attn_implementation=attention)
    return {"llama": LlamaForCausalLM, "qwen2": Qwen2ForCausalLM}[kind](config).eval()


def families() -> list[Group]:
    torch.manual_seed(1)
    groups = []
    for number, (prefix, answers) in enumerate([(9, (5, 3, 9)), (4, (6,)), (1, (2, 8))]):
        head = torch.randint(1, 61, (prefix,)).tolist()
        rows = [head + torch.randint(1, 61, (n,)).tolist() for n in answers]
        groups.append(
            Group(
                Prompt(str(number), ()),
                tuple(
                    Trajectory((), {"tokens": row}, [False] * prefix + [True] * (len(row) - prefix))
                    for row in rows
                ),
            )
        )
    return groups


@pytest.mark.parametrize("kind", ["llama", "qwen2"])
def test_packed_equals_padded_forward_and_backward(kind: str) -> None:
    packed, plain = model(kind, "ratchet"), model(kind, "eager")
    batch = pack(families(), unit="row", tokens=10_000)[0]
    rows = batch.inputs["tokens"]
    ours = model_outputs(packed, "policy", batch, frozenset({"logprobs", "entropy"}))
    padded = torch.nn.utils.rnn.pad_sequence(list(rows), batch_first=True)
    there = torch.arange(padded.shape[1]) < torch.tensor([len(r) for r in rows])[:, None]
    logits = plain(input_ids=padded, attention_mask=there.long()).logits.log_softmax(-1)
    shifted = logits[:, :-1].gather(-1, padded[:, 1:, None])[..., 0]
    theirs = torch.cat([torch.zeros(len(rows), 1), shifted], 1) * batch.mask
    entropy = torch.cat([torch.zeros(len(rows), 1), -(logits.exp() * logits).sum(-1)[:, :-1]], 1) * batch.mask
    torch.testing.assert_close(ours.logprobs, theirs, atol=1e-5, rtol=0)
    torch.testing.assert_close(ours.entropy, entropy, atol=1e-5, rtol=0)
    weights = torch.randn(ours.logprobs.shape)
    (ours.logprobs * weights + ours.entropy).sum().backward()
    (theirs * weights + entropy).sum().backward()
    for (name, p), q in zip(packed.named_parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(
            p.grad, q.grad, atol=2e-5, rtol=1e-4, msg=lambda m, name=name: f"{name}: {m}"
        )


def test_common_prefixes_are_packed_once_at_every_depth() -> None:
    system, question, answer = list(range(10, 20)), list(range(20, 30)), list(range(30, 40))
    rows = [
        [*system, *question, *answer, 1],
        [*system, 2],
        [*system, *question, 3],
        [*system, *question, *answer, 4, 5],
        [6, 7],
    ]
    plan = PackedPlan([torch.tensor(row) for row in rows])
    assert sorted(plan.tokens[0].tolist()) == sorted([*system, *question, *answer, 1, 2, 3, 4, 5, 6, 7])
    assert [plan.tokens[0][i].tolist() for i in plan.index] == rows
    assert [plan.positions[0][i].tolist() for i in plan.index] == [list(range(len(row))) for row in rows]


def test_short_common_prefixes_are_not_shared() -> None:
    plan = PackedPlan([torch.tensor([5, 6, 7]), torch.tensor([5, 6, 8])])
    assert plan.tokens[0].tolist() == [5, 6, 7, 5, 6, 8] and [
        segment.before for segment in plan.segments
    ] == [(), ()]


def test_prefixes_at_three_depths_change_neither_logprobs_nor_gradients() -> None:
    packed, plain = model("llama", "ratchet"), model("llama", "eager")
    torch.manual_seed(3)
    system, first, second = (torch.randint(1, 61, (n,)).tolist() for n in (9, 12, 8))
    rows = [
        [*system, *first, 7, 8],
        [*system, 9],
        [*system, *first, *second],
        [*system, *first, *second, 3],
        [*system, *first, *second, 3],
        [4, *system],
    ]
    groups = [
        Group(Prompt(str(i), ()), (Trajectory((), {"tokens": row}, [False] + [True] * (len(row) - 1)),))
        for i, row in enumerate(rows)
    ]
    ours = model_outputs(
        packed, "policy", pack(groups, unit="row", tokens=10_000)[0], frozenset({"logprobs"})
    ).logprobs
    theirs = [
        plain(input_ids=torch.tensor([row])).logits[0, :-1].log_softmax(-1)[range(len(row) - 1), row[1:]]
        for row in rows
    ]
    for b, expected in enumerate(theirs):
        torch.testing.assert_close(ours[b, 1 : len(rows[b])], expected, atol=1e-5, rtol=0)
    weights = [torch.randn(len(row) - 1) for row in rows]
    sum((ours[b, 1 : len(rows[b])] * w).sum() for b, w in enumerate(weights)).backward()
    sum((expected * w).sum() for expected, w in zip(theirs, weights, strict=True)).backward()
    for (name, p), q in zip(packed.named_parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(
            p.grad, q.grad, atol=2e-5, rtol=1e-4, msg=lambda m, name=name: f"{name}: {m}"
        )


def test_output_layer_runs_once_for_equal_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    read, model_ = [], model("llama", "ratchet")
    monkeypatch.setattr(
        reading,
        "chosen_logprobs",
        lambda hidden, *a, **k: read.append(len(hidden)) or chosen_logprobs(hidden, *a, **k),
    )
    chosen, rejected = [*range(1, 11), 7, 8], [[*range(1, 11), 9], [*range(1, 11), 7, 9]]
    paths = [
        Trajectory((), {"tokens": row}, [False] * 10 + [True] * (len(row) - 10))
        for other in rejected
        for row in (chosen, other)
    ]
    out = model_outputs(
        model_,
        "policy",
        pack([Group(Prompt("p", ()), tuple(paths))], unit="pair", tokens=99)[0],
        frozenset({"logprobs"}),
    ).logprobs
    assert read == [2 + 1 + 1], "7 after the prompt once, 8 and 9 after 7, 9 after the prompt"
    assert torch.equal(out[0], out[2]) and out[0, 10] == out[3, 10]


def test_equal_rows_and_a_row_that_ends_in_the_prefix() -> None:
    packed, plain = model("llama", "ratchet"), model("llama", "eager")
    rows = [[*range(1, 11), 7], [*range(1, 11), 7], list(range(1, 11))]
    group = Group(
        Prompt("p", ()), tuple(Trajectory((), {"tokens": r}, [False] + [True] * (len(r) - 1)) for r in rows)
    )
    ours = model_outputs(
        packed, "policy", pack([group], unit="group", tokens=9)[0], frozenset({"logprobs"})
    ).logprobs
    for b, row in enumerate(rows):
        theirs = plain(input_ids=torch.tensor([row])).logits[0, :-1].log_softmax(-1)
        torch.testing.assert_close(
            ours[b, 1 : len(row)], theirs[range(len(row) - 1), row[1:]], atol=1e-5, rtol=0
        )


def test_a_call_without_plan_is_refused() -> None:
    with pytest.raises(ContractError, match="plan"):
        model("llama", "ratchet")(input_ids=torch.tensor([[1, 2]]))


@pytest.mark.parametrize("frozen", [False, True])
@pytest.mark.parametrize("entropy", [False, True])
@pytest.mark.parametrize("softcap", [None, 1.5])
def test_chosen_logprobs_are_log_softmax_with_its_gradient(
    frozen: bool, entropy: bool, softcap: float | None
) -> None:
    torch.manual_seed(0)
    hidden = torch.randn(7, 5, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(11, 5, dtype=torch.float64, requires_grad=not frozen)
    bias = torch.randn(11, dtype=torch.float64, requires_grad=not frozen)
    targets = torch.randint(0, 11, (7,))
    options = dict(entropy=entropy, softcap=softcap, chunk=3)
    logprobs, entropies = chosen_logprobs(hidden, weight, targets, bias=bias, **options)
    logits = hidden @ weight.t() + bias
    exact = (logits if softcap is None else softcap * (logits / softcap).tanh()).log_softmax(-1)
    torch.testing.assert_close(logprobs, exact[range(7), targets], atol=1e-12, rtol=0)
    if entropy:
        torch.testing.assert_close(entropies, -(exact.exp() * exact).sum(-1), atol=1e-12, rtol=0)
    inputs = (hidden,) if frozen else (hidden, weight, bias)

    def both(h, w=weight, b=bias):
        first, second = chosen_logprobs(h, w, targets, bias=b, **options)
        return (first, second) if entropy else first

    assert torch.autograd.gradcheck(both, inputs)


@pytest.mark.skipif(
    HUGE_PAGES.exists() and "[always]" in HUGE_PAGES.read_text(), reason="every page here is of 2 MB"
)
def test_places_past_the_end_of_a_prompt_take_no_memory() -> None:
    """Of 800 MB for texts of 1,024 tokens, one page for the first token of each is in memory."""

    def resident() -> float:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6

    config = LlamaConfig(num_key_value_heads=3, head_dim=64, num_hidden_layers=4)
    like = SimpleNamespace(config=config, parameters=lambda: iter([torch.zeros(1)]))
    before = resident()
    cache = Cache(like, slots=64, prompt=1024, rows=64, answer=1024)
    cache.prompt[..., 0, :] = cache.own[..., 0, :] = 1
    for part in (
        cache.prompt,
        cache.own,
    ):  # attention reads all places; those that were not written stay free
        assert part[..., 1:, :].sum() == 0
    assert resident() - before < 100, "MB"


@pytest.mark.parametrize("slots", [(0, 1), (1, 2), (0, 2), (0, 3), (3,), (0, 1, 2, 3)])
def test_a_decode_step_attends_to_its_prompt_and_its_own_answer(slots: tuple[int, ...]) -> None:
    """Against attention written out row by row; distant slots are gathered, close ones read as a view."""
    torch.manual_seed(0)
    heads, kv, size, width = 4, 2, 8, 2
    config = LlamaConfig(
        num_key_value_heads=kv, head_dim=size, num_hidden_layers=1, num_attention_heads=heads, hidden_size=32
    )
    like = torch.zeros(1)
    cache = Cache(
        SimpleNamespace(config=config, parameters=lambda: iter([like])), slots=4, prompt=6, rows=8, answer=5
    )
    for held in (cache.prompt_keys, cache.prompt_values, cache.own_keys, cache.own_values):
        held[0].normal_()
    prompt = torch.tensor([3, 6, 4, 5])
    rows = [(place, number) for place in range(len(slots)) for number in range(width)][1:]  # one has ended
    lengths = torch.tensor([i % 4 for i in range(len(rows))])
    plan = DecodePlan(
        cache,
        slots=slots,
        prompt_lengths=prompt[list(slots)],
        width=width,
        place=torch.tensor([place * width + number for place, number in rows]),
        lengths=lengths,
    )
    query, key, value = (torch.randn(1, n, len(rows), size) for n in (heads, kv, kv))
    out = plan.attend(0, query, key, value, Variant(0.3))
    for r, (place, _) in enumerate(rows):
        slot, own = slots[place], int(lengths[r])
        k, v = (
            torch.cat([prompts[0][slot, :, : prompt[slot]], answers[0][r, :, :own], new[0, :, r : r + 1]], 1)
            for prompts, answers, new in (
                (cache.prompt_keys, cache.own_keys, key),
                (cache.prompt_values, cache.own_values, value),
            )
        )
        k, v = (t.repeat_interleave(heads // kv, 0) for t in (k, v))
        weights = (query[0, :, r : r + 1] @ k.transpose(1, 2) * 0.3).softmax(-1)
        torch.testing.assert_close(out[0, r], (weights @ v)[:, 0], atol=1e-5, rtol=0)
