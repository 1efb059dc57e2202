"""Pooling: worked numbers, empty sequences, fp32 sums, determinism."""

import math

import pytest
import torch
from closeness import assert_as_good_as, assert_same_bits
from op_harness import backends_of, offsets, one_thread, skip_if_refused  # noqa: F401
from torch import Tensor

from encoder_fast.kernels import dispatch
from encoder_fast.kernels.pool import MODES

each_backend = pytest.mark.parametrize("backend", backends_of("pool"))
each_mode = pytest.mark.parametrize("mode", MODES)


def pool(backend: str, x_TW: Tensor, lengths: tuple[int, ...], mode: str, *how) -> Tensor:
    skip_if_refused("pool", backend, x_TW.dtype)
    return dispatch.op_tables()["pool"][backend].run(x_TW, offsets(lengths), mode, *how)


# Two sequences, (1, 4), (3, 0), (8, -4) and (6, 8).
ROWS = [[1.0, 4.0], [3.0, 0.0], [8.0, -4.0], [6.0, 8.0]]
WORKED = {
    "cls": [1.0, 4.0],
    "last": [8.0, -4.0],
    "max": [8.0, 4.0],
    "mean": [4.0, 0.0],
    "mean_sqrt_len": [12 / math.sqrt(3), 0.0],
    "weighted": [(1 + 2 * 3 + 3 * 8) / 6, (4 + 0 - 3 * 4) / 6],
}


@each_backend
@each_mode
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64], ids=str)
def test_worked_numbers(backend, mode, dtype):
    y_BW = pool(backend, torch.tensor(ROWS, dtype=dtype), (3, 1), mode)
    assert y_BW.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    torch.testing.assert_close(y_BW[0].float(), torch.tensor(WORKED[mode]), rtol=1e-6, atol=1e-6)
    assert y_BW[1].tolist() == [6.0, 8.0]


def test_every_mode_has_a_worked_number():
    assert set(MODES) == WORKED.keys()


@each_backend
@each_mode
@pytest.mark.parametrize("normalize", [False, True], ids=["plain", "unit-length"])
def test_C45_C16_empty_sequences_are_zeros_with_zero_gradient(backend, mode, normalize):
    lengths, x_TW = (0, 2, 0, 3, 0), torch.randn(5, 4).requires_grad_()
    y_BW = pool(backend, x_TW, lengths, mode, normalize)
    assert y_BW[[0, 2, 4]].tolist() == [[0.0] * 4] * 3
    cotangent = torch.randn_like(y_BW)
    cotangent[[0, 2, 4]] = math.inf
    (grad,) = torch.autograd.grad(y_BW, x_TW, cotangent, retain_graph=True)
    without = x_TW.detach().clone().requires_grad_()
    y_2W = pool(backend, without, (2, 3), mode, normalize)
    assert_same_bits(y_BW[[1, 3]], y_2W)
    if not normalize:
        assert_same_bits(grad, torch.autograd.grad(y_2W, without, cotangent[[1, 3]])[0])
    cotangent[[0, 2, 4]] = 1.0
    assert torch.autograd.grad(y_BW, x_TW, cotangent)[0].isfinite().all()


@each_backend
@each_mode
@pytest.mark.parametrize("lengths", [(), (0, 0)], ids=str)
def test_C16_no_token_at_all(backend, mode, lengths):
    x_TW = torch.randn(0, 4).requires_grad_()
    y_BW = pool(backend, x_TW, lengths, mode, True)
    assert y_BW.tolist() == [[0.0] * 4] * len(lengths)
    y_BW.sum().backward()
    assert x_TW.grad.shape == (0, 4)


@each_backend
@each_mode
def test_normalized_has_unit_length_and_its_direction(backend, mode):
    x_TW = torch.randn(9, 8)
    plain, unit = (pool(backend, x_TW, (2, 7), mode, flag) for flag in (False, True))
    assert (unit.norm(dim=1) - 1).abs().max() < 1e-6
    assert (unit * plain.norm(dim=1, keepdim=True) - plain).abs().max() < 1e-6


@each_backend
def test_truncation_comes_before_normalization(backend):
    x_TW = torch.randn(9, 8)
    full = pool(backend, x_TW, (2, 7), "mean")
    assert_same_bits(pool(backend, x_TW, (2, 7), "mean", False, 3), full[:, :3])
    unit = pool(backend, x_TW, (2, 7), "mean", True, 3)
    assert unit.shape == (2, 3)
    assert (unit.norm(dim=1) - 1).abs().max() < 1e-6


@each_backend
@pytest.mark.parametrize("mode", ["mean", "weighted", "mean_sqrt_len"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=["fp16", "bf16"])
def test_C45_sums_over_8192_tokens_are_fp32(backend, mode, dtype):
    """The sum of 8192 x 100 does not fit fp16, and bf16 stops counting at 256."""
    x_TW = (100 + torch.randn(8192 + 3, 2)).to(dtype)
    y_BW = pool(backend, x_TW, (8192, 3), mode)
    exact = pool("reference", x_TW.double(), (8192, 3), mode)
    assert (y_BW / exact - 1).abs().max() < 1e-5


@each_backend
@pytest.mark.parametrize("mode", ["mean", "weighted", "mean_sqrt_len"])
@pytest.mark.parametrize("length", [1000, 8192, 65536])
@pytest.mark.parametrize("mean", [0.0, 1.0])
def test_sums_do_not_lose_accuracy_with_length(backend, mode, length, mean):
    """Against fp64, by what `x.sum(0)` loses, which adds in pairs."""
    lengths, x_TW = (length, 7), mean + torch.randn(length + 7, 16)
    ours, plain = (pool(b, x_TW, lengths, mode) for b in (backend, "reference"))
    assert_as_good_as(ours, plain, pool("reference", x_TW.double(), lengths, mode))


@each_backend
@each_mode
def test_one_sequence_does_not_see_another(backend, mode):
    x_TW, changed = torch.randn(12, 4), None
    changed = x_TW.clone()
    changed[5:9] = math.nan
    old, new = (pool(backend, x, (5, 4, 3), mode) for x in (x_TW, changed))
    assert_same_bits(new[[0, 2]], old[[0, 2]])
    assert new[1].isnan().all()


@each_backend
def test_max_of_negative_numbers_and_infinities(backend):
    x_TW = torch.tensor([[-3.0, -math.inf], [-2.0, -math.inf], [math.inf, -1.0]])
    y_BW = pool(backend, x_TW, (2, 0, 1), "max")
    assert y_BW.tolist() == [[-2.0, -math.inf], [0.0, 0.0], [math.inf, -1.0]]


@each_backend
@each_mode
def test_C39_same_call_same_bits(backend, mode):
    results = []
    for _ in range(3):
        torch.manual_seed(0)
        x_TW = torch.randn(400, 32).requires_grad_()
        y_BW = pool(backend, x_TW, (300, 0, 100), mode, True)
        results.append((y_BW, torch.autograd.grad(y_BW, x_TW, torch.randn_like(y_BW))[0]))
    for y_BW, grad in results[1:]:
        assert_same_bits(y_BW, results[0][0])
        assert_same_bits(grad, results[0][1])


@each_backend
def test_C39_runs_under_deterministic_algorithms(backend):
    torch.use_deterministic_algorithms(True)
    try:
        for mode in MODES:
            x_TW = torch.randn(5, 4).requires_grad_()
            pool(backend, x_TW, (2, 3), mode).sum().backward()
    finally:
        torch.use_deterministic_algorithms(False)


@each_backend
@each_mode
def test_C45_each_sequence_equals_its_alone_run(backend, mode):
    lengths, x_TW = (4, 1, 6, 17), torch.randn(28, 8)
    y_BW = pool(backend, x_TW, lengths, mode)
    for b, x_LW in enumerate(x_TW.split(lengths)):
        alone = [pool("reference", x, (len(x_LW),), mode)[0] for x in (x_LW, x_LW.double())]
        assert_as_good_as(y_BW[b], *alone)


@each_backend
def test_bad_arguments_are_named(backend):
    x_TW = torch.randn(3, 4)
    with pytest.raises(ValueError, match=r"pooling: got 'median', allowed are .*'mean'"):
        pool(backend, x_TW, (3,), "median")
    for wrong in (0, 5, -1):
        with pytest.raises(ValueError, match=rf"truncate_dim: got {wrong}, allowed are 1 to 4"):
            pool(backend, x_TW, (3,), "mean", False, wrong)
