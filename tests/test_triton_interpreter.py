"""What the kernel tests stand on: the mended interpreter, and the checker of addresses."""

import pytest
import torch

triton = pytest.importorskip("triton")
if not triton.knobs.runtime.interpret:
    pytest.skip("kernels run on the GPU here", allow_module_level=True)

import triton.language as tl  # noqa: E402


@triton.jit
def _cast(X, Y, N: tl.constexpr):
    at = tl.arange(0, N)
    tl.store(Y + at, tl.load(X + at).to(tl.bfloat16))


@triton.jit
def _arithmetic(X, Y, Z, N: tl.constexpr):
    at = tl.arange(0, N)
    x, y = tl.load(X + at), tl.load(Y + at)
    tl.store(Z + at, x * y + x)


@triton.jit
def _product(X, Y, Z, N: tl.constexpr):
    at = tl.arange(0, N)
    grid = at[:, None] * N + at[None, :]
    tl.store(Z + grid, tl.dot(tl.load(X + grid), tl.load(Y + grid)))


@triton.jit
def _double(X, Y, N, STEP: tl.constexpr, BLOCK: tl.constexpr, MASKED: tl.constexpr):
    at = tl.program_id(0) * STEP + tl.arange(0, BLOCK)
    inside = (at < N) | (not MASKED)
    tl.store(Y + at, 2 * tl.load(X + at, mask=inside), mask=at < N)


@triton.jit
def _collide(X, Y, N: tl.constexpr):
    at = tl.arange(0, N)
    tl.store(Y + at // 2, tl.load(X + at))


def test_bf16_casts_round_to_nearest_even():
    x = torch.cat((torch.randn(1020), torch.tensor([1.00390625, 1.01171875, 3.4e38, 0.0])))
    x[:1000] *= 10.0 ** torch.randint(-30, 30, (1000,))
    y = torch.empty(1024, dtype=torch.bfloat16)
    _cast[(1,)](x, y, 1024)
    assert torch.equal(y, x.bfloat16())


def test_bf16_arithmetic_is_that_of_torch():
    x, y = torch.randn(2, 256).bfloat16()
    z = torch.empty_like(x)
    _arithmetic[(1,)](x, y, z, 256)
    assert torch.equal(z, x * y + x) or torch.equal(
        z, (x.float() * y.float() + x.float()).bfloat16()
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_products_have_fp32_sums(dtype):
    x, y = torch.randn(2, 64, 64).to(dtype)
    z = torch.empty(64, 64)
    _product[(1,)](x, y, z, 64)
    exact = x.double() @ y.double()
    assert (z - exact).abs().max() < 1e-5 * exact.abs().max()


def test_clean_kernels_pass():
    x, y = torch.randn(200), torch.full((200,), float("nan"))
    _double[(4,)](x, y, 200, 64, 64, True)
    assert torch.equal(y, 2 * x)


@pytest.mark.parametrize(
    "launch, what",
    [
        (lambda x, y: _double[(4,)](x, y, 200, 64, 64, False), "no argument"),
        (lambda x, y: _double[(4,)](x, y, 200, 32, 64, True), "another program"),
        (lambda x, y: _double[(4,)](x, x, 200, 32, 64, True), "another program"),
        (lambda x, y: _collide[(1,)](x, y, 64), "different numbers"),
    ],
    ids=["load beyond the end", "two writers", "reads what another wrote", "lanes disagree"],
)
def test_faults_are_found(launch, what):
    # What lies beyond the one at the higher address is not the other.
    x, y = sorted((torch.randn(200), torch.randn(200)), key=torch.Tensor.data_ptr, reverse=True)
    with pytest.raises(Exception, match=what):
        launch(x, y)
