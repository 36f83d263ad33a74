"""oneDNN matmul against torch's own."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from ratchet.components.models import forward, products
from ratchet.components.models.load import load_policy
from ratchet.components.models.logprobs import chosen_logprobs
from ratchet.components.models.products import Linear, product, speed_up


@pytest.fixture(autouse=True)
def by_onednn(monkeypatch):
    monkeypatch.setattr(products, "onednn_is_faster", lambda: True)


@pytest.fixture
def mixed(bfloat16_products):
    with products.product_precision("bfloat16"):
        yield


@pytest.mark.parametrize("shape", [(7, 24), (1, 7, 24), (2, 3, 24), (1, 24), (0, 24)])
@pytest.mark.parametrize(
    ("bias", "learns"),
    [(b, learns) for b in (True, False) for learns in (("rows",), ("weight",), ("rows", "weight"))]
    + [(True, ("rows", "weight", "bias"))],
)
def test_matmul_and_gradients_equal_torch(shape, bias, learns):
    torch.manual_seed(0)
    given = {
        "rows": torch.randn(shape),
        "weight": torch.randn(10, 24),
        "bias": torch.randn(10) if bias else None,
    }
    wanted = torch.randn(*shape[:-1], 10)
    found = []
    for multiply in (product, F.linear):
        own = {k: v if v is None else v.clone().requires_grad_(k in learns) for k, v in given.items()}
        out = multiply(own["rows"], own["weight"], own["bias"])
        out.backward(wanted)
        found.append((out.detach(), [own[k].grad for k in learns]))
        assert all(own[k] is None or own[k].grad is None for k in own if k not in learns)
    torch.testing.assert_close(found[0], found[1], rtol=1e-5, atol=1e-5)


def test_matmul_of_transposed_operands():
    rows, weight = torch.randn(24, 7), torch.randn(24, 10)
    torch.testing.assert_close(product(rows.t(), weight.t()), rows.t() @ weight, rtol=1e-5, atol=1e-5)


def test_matmul_in_float64_equals_torch_bit_for_bit():
    rows, weight = torch.randn(7, 24, dtype=torch.float64), torch.randn(10, 24, dtype=torch.float64)
    assert torch.equal(product(rows, weight), F.linear(rows, weight))


def test_packed_weights_change_no_bit_and_no_gradient():
    torch.manual_seed(0)
    layer, rows = nn.Linear(24, 10), torch.randn(7, 24)
    speed_up(layer)
    with torch.no_grad():
        expected = layer(rows)
        with products.packed(layer, 7):
            assert layer.packed is not None and torch.equal(layer(rows), expected)
            layer.weight.zero_()
            assert torch.equal(layer(rows), expected), "the packed weight is read"
            with torch.enable_grad():
                layer(rows).sum().backward()
    assert layer.packed is None and layer.weight.grad is not None
    assert torch.equal(layer(rows), layer.bias.expand(7, 10)), "and no more afterwards"


def test_backward_saves_nothing_for_frozen_weights():
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(tuple(t.shape)) or t, lambda t: t):
        product(torch.randn(7, 24, requires_grad=True), torch.randn(10, 24)).sum().backward()
    assert kept == [(10, 24)]


def test_loaded_policy_uses_fast_matmul_with_equal_outputs(tiny_model, monkeypatch):
    ours, plain = load_policy(tiny_model), load_policy(tiny_model, attention="sdpa")
    changed = [name for name, module in ours.named_modules() if type(module) is Linear]
    assert (
        changed == [name for name, module in plain.named_modules() if type(module) is nn.Linear] and changed
    )
    assert list(ours.state_dict()) == list(plain.state_dict())
    layer = ours.get_submodule(changed[0])
    rows = torch.randn(3, layer.in_features)
    torch.testing.assert_close(layer(rows), plain.get_submodule(changed[0])(rows), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("bias", [True, False])
def test_mixed_precision_equals_autocast(bias, mixed):
    torch.manual_seed(0)
    layer, rows, wanted = nn.Linear(24, 10, bias=bias), torch.randn(2, 7, 24), torch.randn(2, 7, 10)
    found = []
    for own in (False, True):
        given = rows.clone().requires_grad_()
        layer.zero_grad()
        if own:
            speed_up(layer)
            out = layer(given)
        else:
            with torch.autocast("cpu", torch.bfloat16):
                out = layer(given)
        out.float().backward(wanted)
        found.append([out.float().detach(), given.grad, *(p.grad.clone() for p in layer.parameters())])
    for mine, theirs in zip(found[1], found[0], strict=True):
        assert mine.dtype == torch.float32
        torch.testing.assert_close(mine, theirs, rtol=2e-2, atol=6e-2)  # bfloat16 has 8 significant bits
    exact = nn.functional.linear(rows, layer.weight, layer.bias).detach()
    assert 1e-3 < (found[1][0] - exact).abs().max() < 0.05, "rounded, unlike float32"


def test_float32_contexts_and_float64_models_are_exempt(mixed):
    layer, rows = nn.Linear(24, 10), torch.randn(7, 24)
    speed_up(layer)
    exact = F.linear(rows, layer.weight, layer.bias)
    with products.product_precision("float32"):
        torch.testing.assert_close(layer(rows), exact, rtol=1e-5, atol=1e-5)
    assert products.MIXED and not torch.allclose(layer(rows), exact, rtol=1e-5, atol=1e-5)
    assert layer.double()(rows.double()).dtype == torch.float64


def test_packed_weights_change_little_in_mixed_precision(mixed):
    layer, rows = nn.Linear(24, 10), torch.randn(7, 24)
    speed_up(layer)
    with torch.no_grad():
        expected = layer(rows)
        with products.packed(layer, 7):
            assert layer.packed is not None and layer.packed.dtype == torch.bfloat16
            torch.testing.assert_close(layer(rows), expected, rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize("entropy", [False, True])
def test_the_output_layer_rounds_its_operands_in_mixed_precision(entropy, bfloat16_products):
    """Log-probs and gradients near those in float32; products stay as they were. oneDNN may round operands
    and does where AMX makes it faster; with the bfloat16 of AVX-512 alone it keeps float32.
    """
    torch.manual_seed(0)
    targets, found = torch.randint(0, 300, (70,)), {}
    hidden, weight = torch.randn(70, 48), torch.randn(300, 48)
    before = torch.backends.mkldnn.matmul.fp32_precision
    for precision in ("float32", "bfloat16"):
        h, w = hidden.clone().requires_grad_(), weight.clone().requires_grad_()
        with products.product_precision(precision):
            logprobs, entropies = chosen_logprobs(h, w, targets, entropy=entropy, chunk=32)
            (logprobs.sum() + (entropies.sum() if entropy else 0.0)).backward()
        assert torch.backends.mkldnn.matmul.fp32_precision == before
        found[precision] = [logprobs.detach(), h.grad, w.grad]
    for exact, rounded in zip(found["float32"], found["bfloat16"], strict=True):
        assert rounded.dtype == torch.float32
        torch.testing.assert_close(rounded, exact, rtol=5e-2, atol=1.5e-1)
    if torch.cpu._is_amx_tile_supported():
        assert not torch.equal(found["float32"][0], found["bfloat16"][0])


def test_a_score_is_not_rounded_in_mixed_precision(mixed):
    """With 8 significant bits many answers would tie."""
    head, states = nn.Linear(24, 1, bias=False), torch.randn(7, 24)
    speed_up(nn.Sequential(head))
    torch.testing.assert_close(
        forward._read(head, states), F.linear(states, head.weight)[:, 0], rtol=1e-5, atol=1e-5
    )


def test_hardware_that_emulates_bfloat16_keeps_float32(monkeypatch, mixed):
    monkeypatch.setattr(products, "has_bfloat16", lambda: False)
    with products.product_precision("bfloat16"):
        assert not products.MIXED
    assert products.MIXED, "as before"


def test_other_layer_classes_are_unchanged():
    class Own(nn.Linear):
        pass

    model = nn.Sequential(nn.Linear(2, 2), Own(2, 2))
    speed_up(model)
    assert [type(module) for module in model] == [Linear, Own]


def test_memory_is_bounded_over_many_shapes():
    """oneDNN would remember 1,024 of them, 0.7 MB each."""
    code = (
        "import torch; from pathlib import Path; from ratchet.components.models import products; "
        "products.onednn_is_faster = lambda: True\n"
        "def resident(): return int(Path('/proc/self/statm').read_text().split()[1]) / 256\n"
        "weight, rows = torch.randn(64, 96), torch.randn(1200, 96)\n"
        "products.product(rows, weight); before = resident()\n"
        "for n in range(200, 1000): products.product(rows[:n], weight)\n"
        "print(resident() - before)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        cwd=Path(__file__).parents[3],
        check=True,
    )
    assert float(done.stdout) < 150, "MB"
