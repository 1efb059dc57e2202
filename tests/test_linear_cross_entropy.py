"""The vocabulary loss: worked numbers, chunks, labels, divisors, and no (N, V) tensor.

The oracle is torch's own cross-entropy on fp64 logits, not the op's reference.
"""

import math

import pytest
import torch
import torch.nn.functional as F
from closeness import assert_as_good_as, assert_same_bits, ulps
from op_harness import backends_of, fast_backends_of, one_thread, skip_if_refused  # noqa: F401
from test_attention_memory import LargestTensor
from torch import Tensor

from encoder_fast.kernels import dispatch, linear_cross_entropy

each_backend = pytest.mark.parametrize("backend", backends_of("linear_cross_entropy"))
each_dtype = pytest.mark.parametrize(
    "dtype", [torch.float32, torch.bfloat16, torch.float16], ids=["fp32", "bf16", "fp16"]
)


def loss_of(backend: str, x_NW, weight_VW, bias_V, labels_N, **how) -> Tensor:
    skip_if_refused("linear_cross_entropy", backend, x_NW.dtype)
    run = dispatch.op_tables()["linear_cross_entropy"][backend].run
    return run(x_NW, weight_VW, bias_V, labels_N, **how)


def draw(N: int, V: int, W: int = 16, dtype=torch.float32) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    x_NW, weight_VW, bias_V = torch.randn(N, W), torch.randn(V, W) / W**0.5, torch.randn(V)
    leaves = (x.to(dtype).requires_grad_() for x in (x_NW, weight_VW, bias_V))
    labels_N = (torch.arange(N) * 37 + V - 1) % V
    return *leaves, labels_N


def with_gradients(loss: Tensor, leaves) -> dict[str, Tensor]:
    names = ("dx", "dw", "db")[: len(leaves)]
    return {"loss": loss, **dict(zip(names, torch.autograd.grad(loss, leaves), strict=True))}


def torch_loss(dtype, x_NW, weight_VW, bias_V, labels_N, **how) -> dict[str, Tensor]:
    """Torch's cross-entropy on all logits in `dtype`, with the gradients of the three."""
    leaves = [x.detach().to(dtype).requires_grad_() for x in (x_NW, weight_VW, bias_V)]
    return with_gradients(F.cross_entropy(F.linear(*leaves), labels_N, **how), leaves)


def assert_like_torch(backend: str, inputs, **how) -> None:
    dtype = inputs[0].dtype
    ours = with_gradients(loss_of(backend, *inputs, **how), inputs[:3])
    exact = torch_loss(torch.float64, *inputs, **how)
    plain = torch_loss(dtype, *inputs, **how)
    assert ours["loss"].dtype == torch.float32
    floor = ulps(dtype, exact["loss"])
    three = ours.pop("loss"), plain.pop("loss").float(), exact.pop("loss")
    assert_as_good_as(*three, floor=floor, name="loss")
    assert_as_good_as(ours, plain, exact, factor=3)


@each_backend
@each_dtype
@pytest.mark.parametrize("V", [97, 130, 30522])
@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_C24_any_vocabulary_equals_torch(backend, dtype, V, reduction):
    assert_like_torch(backend, draw(7, V, dtype=dtype), reduction=reduction)


@each_backend
@each_dtype
def test_C24_logits_of_minus_20(backend, dtype):
    """130 logits of -20: log-sum-exp log(130) - 20 = -15.132; phantom columns make it 4.8."""
    x_NW, weight_VW = torch.zeros(3, 8, dtype=dtype), torch.zeros(130, 8, dtype=dtype)
    bias_V, labels_N = torch.full((130,), -20.0, dtype=dtype), torch.tensor([0, 64, 129])
    leaves = [x.requires_grad_() for x in (x_NW, weight_VW, bias_V)]
    loss = loss_of(backend, *leaves, labels_N)
    assert loss.item() == pytest.approx(math.log(130), abs=1e-5)
    z_loss = loss_of(backend, *leaves, labels_N, z_loss=1.0)
    assert math.sqrt(z_loss.item() - math.log(130)) == pytest.approx(15.132466, abs=1e-5)
    loss.backward()
    expected = torch.full((130,), 1 / 130)
    expected[labels_N] -= 1 / 3
    assert (bias_V.grad.float() - expected).abs().max() < 2 * torch.finfo(dtype).eps


@each_backend
@pytest.mark.parametrize("smoothing", [0.1, 1.0])
def test_label_smoothing_equals_torch(backend, smoothing):
    assert_like_torch(backend, draw(7, 97), label_smoothing=smoothing)


@each_backend
def test_z_loss_adds_the_squared_log_sum_exp(backend):
    inputs = draw(7, 97)
    ours = with_gradients(loss_of(backend, *inputs, z_loss=0.25), inputs[:3])
    both = []
    for dtype in (torch.float32, torch.float64):
        leaves = [x.detach().to(dtype).requires_grad_() for x in inputs[:3]]
        z_NV = F.linear(*leaves)
        loss = F.cross_entropy(z_NV, inputs[3]) + 0.25 * z_NV.logsumexp(1).square().mean()
        both.append(with_gradients(loss, leaves))
    assert_as_good_as(ours, *both, factor=3)


@each_backend
@pytest.mark.parametrize("rows", [1, 2, 3, 50])
@pytest.mark.parametrize("how", [{}, {"label_smoothing": 0.1}], ids=["plain", "smoothed"])
def test_C21_chunks_of_rows_cover_each_row_once(backend, rows, how, monkeypatch):
    monkeypatch.setattr(linear_cross_entropy, "LOGITS_PER_CHUNK", rows * 97)
    assert_like_torch(backend, draw(50, 97), **how)
    monkeypatch.setattr(linear_cross_entropy, "LOGITS_PER_CHUNK", 1)
    assert_like_torch(backend, draw(5, 97), **how)


@each_backend
def test_C53_num_items_divides_the_sum(backend):
    inputs = draw(7, 97)
    inputs[3][3:] = -100
    mean, total, items = (
        loss_of(backend, *inputs, **how).item()
        for how in ({}, {"reduction": "sum"}, {"num_items": 30})
    )
    assert items / mean == pytest.approx(0.1, rel=1e-6)
    assert total / mean == pytest.approx(3, rel=1e-6)
    whole = with_gradients(loss_of(backend, *inputs), inputs[:3])
    scaled = with_gradients(loss_of(backend, *inputs, num_items=30), inputs[:3])
    for name, grad in whole.items():
        assert (scaled[name] * 10 - grad).abs().max() < 1e-6, name


@each_backend
@each_dtype
def test_no_bias(backend, dtype):
    x_NW, weight_VW, _, labels_N = draw(7, 97, dtype=dtype)
    zero = torch.zeros(97, dtype=dtype)
    none = loss_of(backend, x_NW, weight_VW, None, labels_N)
    expected = loss_of(backend, x_NW, weight_VW, zero, labels_N)
    assert none.item() == pytest.approx(expected.item(), rel=4 * torch.finfo(dtype).eps)
    leaves = (x_NW, weight_VW)
    for a, b in zip(*(torch.autograd.grad(y, leaves) for y in (none, expected)), strict=True):
        assert (a - b).abs().max() <= 4 * torch.finfo(dtype).eps * b.abs().max()


@each_backend
@pytest.mark.parametrize("N", [0, 4])
def test_C54_no_label_gives_zero_loss_and_zero_gradients(backend, N):
    inputs = draw(N, 97)
    loss = loss_of(backend, *inputs[:3], torch.full((N,), -100))
    assert loss.item() == 0.0
    for name, grad in with_gradients(loss, inputs[:3]).items():
        assert torch.count_nonzero(grad) == 0, name


@each_backend
def test_C54_ignored_rows_equal_absent_rows(backend):
    x_NW, weight_VW, bias_V, labels_N = draw(9, 97)
    kept = torch.tensor([0, 3, 4, 8])
    some = torch.full((9,), -100)
    some[kept] = labels_N[kept]
    x_NW.data[1] = math.nan
    ours = loss_of(backend, x_NW, weight_VW, bias_V, some)
    alone = loss_of(backend, x_NW[kept], weight_VW, bias_V, labels_N[kept])
    assert_same_bits(ours, alone)
    grads, expected = (torch.autograd.grad(y, (x_NW, weight_VW, bias_V)) for y in (ours, alone))
    for a, b in zip(grads, expected, strict=True):
        assert_same_bits(a, b)
    assert grads[0][1].tolist() == [0.0] * 16


@each_backend
@pytest.mark.parametrize("wrong", [97, -1, -101, 2**40], ids=str)
def test_C54_label_out_of_range_is_named(backend, wrong):
    inputs = draw(4, 97)
    inputs[3][2] = wrong
    with pytest.raises(ValueError, match=rf"labels: got {wrong}, allowed are 0 to 96 and -100"):
        loss_of(backend, *inputs)


@each_backend
def test_C54_wrong_kind_of_labels_is_named(backend):
    x_NW, weight_VW, bias_V, labels_N = draw(4, 97)
    for labels in (labels_N.float(), labels_N > 3):
        with pytest.raises(TypeError, match=r"labels: got dtype .* integer"):
            loss_of(backend, x_NW, weight_VW, bias_V, labels)
    with pytest.raises(ValueError, match=r"labels: got shape \(3,\)"):
        loss_of(backend, x_NW, weight_VW, bias_V, labels_N[:3])
    with pytest.raises(ValueError, match=r"reduction: got 'none', allowed are"):
        loss_of(backend, x_NW, weight_VW, bias_V, labels_N, reduction="none")


@each_backend
@pytest.mark.parametrize("dtype", [torch.int32, torch.int16, torch.uint8], ids=str)
def test_C54_labels_of_any_integer_dtype(backend, dtype):
    inputs = draw(4, 97)
    expected = loss_of(backend, *inputs)
    assert_same_bits(loss_of(backend, *inputs[:3], inputs[3].to(dtype)), expected)


@each_backend
def test_C54_loss_does_not_depend_on_who_needs_a_gradient(backend):
    inputs = draw(7, 97)
    expected = loss_of(backend, *inputs)
    whole = torch.autograd.grad(expected, inputs[:3])
    with torch.no_grad():
        assert_same_bits(loss_of(backend, *inputs), expected)
    with torch.inference_mode():
        assert loss_of(backend, *inputs).item() == expected.item()
    for i in range(3):
        alone = [x.detach().requires_grad_(j == i) for j, x in enumerate(inputs[:3])]
        loss = loss_of(backend, *alone, inputs[3])
        assert_same_bits(loss, expected)
        assert_same_bits(torch.autograd.grad(loss, alone[i])[0], whole[i])


@each_backend
def test_gradient_is_scaled_by_what_comes_after_the_loss(backend):
    inputs = draw(7, 97)
    loss = loss_of(backend, *inputs)
    plain = torch.autograd.grad(loss, inputs[:3], retain_graph=True)
    for a, b in zip(torch.autograd.grad(loss * 8, inputs[:3]), plain, strict=True):
        assert_same_bits(a, b * 8)


@pytest.mark.parametrize("backend", fast_backends_of("linear_cross_entropy"))
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
def test_C57_no_tensor_of_all_logits(backend, dtype):
    """1200 rows over 30522 words are 37 million logits; a chunk holds 8 million."""
    N, V = 1200, 30522
    inputs = draw(N, V, W=8, dtype=dtype)
    with LargestTensor() as largest:
        loss_of(backend, *inputs).backward()
    assert largest.elements >= V * 8, "the weight's gradient was not seen"
    assert largest.elements <= linear_cross_entropy.LOGITS_PER_CHUNK < N * V / 4


@each_backend
def test_C39_same_call_same_bits(backend):
    results = []
    for _ in range(3):
        torch.manual_seed(0)
        inputs = draw(50, 130)
        results.append(with_gradients(loss_of(backend, *inputs), inputs[:3]))
    for name, first in results[0].items():
        assert_same_bits(results[1][name], first, name)
        assert_same_bits(results[2][name], first, name)


def test_no_grad_computes_no_gradient(monkeypatch):
    run = linear_cross_entropy.IMPLEMENTATIONS["torch"].run
    x, weight = torch.randn(5, 8, requires_grad=True), torch.randn(11, 8, requires_grad=True)
    labels = torch.arange(5)
    trained = run(x, weight, None, labels)
    # The gradient of the weight is the only zeros_like: without gradients nobody asks for it.
    monkeypatch.setattr(torch, "zeros_like", None)
    with torch.no_grad():
        frozen = run(x, weight, None, labels)
    assert torch.equal(frozen, trained.detach())
