"""fp32 at torch's matmul precision "high": three bf16 products for each on a matrix unit, about 16
bits; exact fp32 on the tiers without one. The emulated tier runs the matrix unit's code anywhere.
"""

import contextlib

import pytest
import torch
from closeness import assert_same_bits
from native_harness import on, with_gradients
from op_cases import CASES
from op_harness import layout
from test_ops import TABLES, cotangents_like, gradients, run
from tiny import FAMILIES, exact, inputs, our_model, real_rows

import encoder_fast as ef
from encoder_fast.kernels import _native, _native_weights, linear

TIERS = [name for name in ("amx_bf16", "amx_emulated") if name in _native.tiers()]
pytestmark = pytest.mark.skipif(not TIERS, reason=str(_native.missing))
each_tier = pytest.mark.parametrize("tier", TIERS)
OPS = ("linear", "mlp", "attention", "linear_cross_entropy")
WIDE = {"hidden_size": 128, "num_attention_heads": 2, "intermediate_size": 200}
ASKED = 2.0**-13
"""The largest error that "high" may have, relative to the largest number of a result."""


@contextlib.contextmanager
def precision(name: str):
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(name)
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


def error(ours, oracle, scale: float | None = None) -> float:
    """Largest difference, relative to the largest number or to `scale`."""
    if not ours.numel():
        return 0.0
    scale = oracle.abs().max().item() if scale is None else scale
    return (ours.double() - oracle).abs().max().item() / scale if scale else 0.0


def all_of(op: str, backend: str, case, dtype) -> dict:
    """Result and gradients of one case, all by name."""
    arguments = case.make(torch.float32)
    arguments = {
        name: x.detach().to(dtype).requires_grad_(x.requires_grad)
        if isinstance(x, torch.Tensor) and x.is_floating_point()
        else x
        for name, x in arguments.items()
    }
    out = run(TABLES[op][backend], arguments)
    out = out[0] if isinstance(out, tuple) else out
    found = gradients([out], arguments, cotangents_like([out.detach()]))
    return {"result": out.detach()} | {f"d {name}": g for name, g in found.items()}


@each_tier
@pytest.mark.parametrize("op, case", [(op, case) for op in OPS for case in CASES[op]], ids=str)
def test_sixteen_bits_forward_and_backward(tier, op, case):
    oracle = all_of(op, "reference", case, torch.float64)
    sizes = {name: x.abs().max().item() if x.numel() else 0.0 for name, x in oracle.items()}
    largest = max((size for name, size in sizes.items() if name != "result"), default=0.0)
    with on(tier), precision("high"):
        assert _native_weights.compute_dtype(torch.float32) == _native_weights.BY_3
        ours = all_of(op, "native", case, torch.float32)
    for name, x in ours.items():
        # Gradients of queries and keys are differences of terms of the scale of those of values.
        scale = largest if op == "attention" and name != "result" else sizes[name]
        found = error(x, oracle[name], scale)
        assert found < ASKED / 4, f"{name}: {found:.2e}"


@each_tier
def test_better_than_one_bf16_product(tier):
    x, weight = torch.randn(70, 300), torch.randn(90, 300)
    oracle = x.double() @ weight.double().T
    errors = {}
    for name in ("highest", "high", "medium"):
        with on(tier), precision(name):
            errors[name] = error(linear.native_linear(x, weight, None), oracle)
    assert errors["highest"] < 1e-6 < errors["high"] < 2e-5 < 1e-3 < errors["medium"], errors


@each_tier
@pytest.mark.parametrize("K", [1, 15, 16, 17, 31, 32, 33, 255, 256, 257, 600])
@pytest.mark.parametrize("T, N", [(1, 1), (31, 17), (33, 64), (97, 65), (200, 130)])
def test_every_edge_of_a_tile(tier, T, N, K):
    x, weight = torch.randn(T, K), torch.randn(N, K)
    with on(tier), precision("high"):
        ours = linear.native_linear(x, weight, None)
    # One result may be nearly 0: its terms are not.
    scale = (x.double().abs() @ weight.double().abs().T).max().item()
    assert error(ours, x.double() @ weight.double().T, scale) < ASKED / 4


@each_tier
@torch.no_grad()
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("changes", [{}, WIDE], ids=["narrow", "wide"])
def test_whole_models(tier, family, changes):
    arguments = inputs(family, (1, 2, 15, 33, 40))
    model = our_model(family, dtype=torch.float32, backend="native", **changes)
    oracle = exact(family, **changes)(**arguments).last_hidden_state
    mask = arguments["attention_mask"]
    errors = {}
    for name in ("highest", "high", "medium"):
        with on(tier), precision(name):
            ours = model(**arguments).last_hidden_state
        errors[name] = error(real_rows(ours, mask), real_rows(oracle, mask))
    # Random weights of this size amplify: fp32 itself loses up to 6e-6.
    assert errors["highest"] < errors["high"] < errors["medium"] / 100, errors
    assert errors["high"] < 2 * ASKED, errors


@each_tier
@torch.no_grad()
def test_a_real_model(tier, minilm_folder):
    ids, mask = torch.randint(1000, 20000, (3, 40)), torch.ones(3, 40, dtype=torch.long)
    model = ef.load(minilm_folder, backend="native")
    oracle = ef.load(minilm_folder, backend="reference", dtype=torch.float64)(ids, mask)
    with on(tier), precision("high"):
        ours = model(ids, mask).last_hidden_state
    found = error(ours, oracle.last_hidden_state)
    assert 0 < found < ASKED / 4, found


@each_tier
@pytest.mark.parametrize(
    "special", [float("inf"), -float("inf"), float("nan"), 3.4e38, -3.3996e38, 1e-40], ids=str
)
def test_numbers_without_halves(tier, special):
    """Infinite, NaN, and beyond the largest bf16: as in fp32, and other rows keep their bits."""
    x, weight = torch.randn(40, 50), torch.randn(20, 50)
    with on(tier), precision("high"):
        before = linear.native_linear(x, weight, None)
        x[33, 7] = special
        weight[5, 3] = 0.0 if special > 1e38 or special != special else weight[5, 3]
        ours = linear.native_linear(x, weight, None)
        wide = linear.native_linear(weight, x, None)
    plain = x @ weight.T
    for found, expected in ((ours, plain), (wide, plain.T)):
        assert torch.equal(found.isnan(), expected.isnan())
        assert torch.equal(found.isinf(), expected.isinf())
        finite = expected.isfinite()
        torch.testing.assert_close(found[finite], expected[finite], rtol=1e-4, atol=1e-3)
    others = torch.ones(40, dtype=torch.bool)
    others[33] = False
    untouched = torch.ones(20, dtype=torch.bool)
    untouched[5] = False
    assert_same_bits(ours[others][:, untouched], before[others][:, untouched])


@each_tier
def test_a_switch_is_never_seen_too_late(tier):
    x, weight, bias = torch.randn(9, 40), torch.randn(30, 40), torch.randn(30)
    with on(tier):
        first = [_at(name, x, weight, bias) for name in ("highest", "high", "medium")]
        again = [_at(name, x, weight, bias) for name in ("highest", "high", "medium")]
    for a, b in zip(first, again, strict=True):
        assert_same_bits(a, b)
    assert not torch.equal(first[0], first[1]) and not torch.equal(first[1], first[2])


def _at(name, *arguments):
    with precision(name):
        return linear.native_linear(*arguments)


@each_tier
@torch.no_grad()
def test_alone_and_in_company_bit_for_bit(tier):
    model = our_model("MB", dtype=torch.float32, backend="native", **WIDE)
    arguments = inputs("MB", (40, 7, 99))
    ids, mask = arguments["input_ids"], arguments["attention_mask"]
    with on(tier, threads=2), precision("high"):
        together = model(ids, mask).last_hidden_state
        for row in range(len(ids)):
            n = int(mask[row].sum())
            alone = model(ids[row : row + 1, :n]).last_hidden_state[0]
            assert_same_bits(alone, together[row, :n])


@each_tier
def test_the_same_bits_in_every_run(tier):
    x, weight = (torch.randn(n, 70, requires_grad=True) for n in (300, 130))
    grad = torch.randn(300, 130)
    runs = []
    for threads in (1, 2, 2):
        with on(tier, threads), precision("high"):
            out = linear.native_linear(x, weight, None)
            runs.append(with_gradients(out, grad, (x, weight)))
    for other in runs[1:]:
        for name, value in runs[0].items():
            assert_same_bits(value, other[name])


@pytest.mark.parametrize("tier", [t for t in _native.tiers() if not t.startswith("amx")])
def test_elsewhere_high_is_exact(tier):
    x, weight = torch.randn(50, 70), torch.randn(90, 70)
    qkv, where = torch.randn(30, 3, 2, 16), layout(20, 10)
    attention = TABLES["attention"]["native"]
    results = []
    for name in ("highest", "high"):
        with on(tier), precision(name):
            plan = attention.prepare(where, (None,), qkv.dtype)
            o, _ = attention.run(qkv, plan, None)
            results.append((linear.native_linear(x, weight, None), o))
    for a, b in zip(*results, strict=True):
        assert_same_bits(a, b)
