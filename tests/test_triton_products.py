"""mlp and linear_cross_entropy on the triton backend, beyond what test_ops says of every one."""

import pytest
import torch
from closeness import assert_as_good_as, assert_same_bits
from triton_harness import DEVICE, DTYPES, each_dtype, kept, poisoned  # noqa: F401

from encoder_fast.kernels import _triton_cross_entropy, _triton_mlp, linear_cross_entropy, mlp

T, W, F = 37, 32, 48


def mlp_inputs(dtype, gated, bias=True, T=T):
    def draw(*shape):
        x = torch.randn(shape, device=DEVICE) * shape[-1] ** -0.5 * 3
        return x.to(dtype).requires_grad_()

    rows = 2 * F if gated else F
    biases = (draw(rows), draw(W)) if bias else (None, None)
    return draw(T, W), draw(rows, W), biases[0], draw(W, F), biases[1]


def gradients(result, inputs):
    leaves = [x for x in inputs if x is not None]
    generator = torch.Generator(DEVICE).manual_seed(3)
    grad = torch.randn(result.shape, generator=generator, device=DEVICE).to(result)
    return torch.autograd.grad(result, leaves, grad)


def seed_of_next_call() -> int:
    state = torch.get_rng_state()
    seed = int(torch.randint(2**62, (1,), device=DEVICE))
    torch.set_rng_state(state)
    return seed


@each_dtype
@pytest.mark.parametrize("gated", [False, True])
def test_dropout_is_philox_of_the_position(dtype, gated, poisoned):  # noqa: F811
    if DEVICE == "cuda":
        pytest.skip("reads the CPU's generator")
    inputs, p = mlp_inputs(dtype, gated), 0.3
    seed = seed_of_next_call()
    ours = _triton_mlp.mlp(*inputs, "gelu", gated, p)
    mask = kept(seed, p, torch.arange(F)[None, :].numpy(), torch.arange(T)[:, None].numpy())

    def plain(x, up, up_bias, down, down_bias, dtype):
        x, up, up_bias, down, down_bias = (
            t.detach().to(dtype).requires_grad_() for t in (x, up, up_bias, down, down_bias)
        )
        h = torch.nn.functional.linear(x, up, up_bias)
        a, gate = h.chunk(2, -1) if gated else (h, 1.0)
        inner = torch.nn.functional.gelu(a) * gate * mask / (1 - p)
        y = torch.nn.functional.linear(inner.to(dtype), down, down_bias)
        return y, gradients(y, (x, up, up_bias, down, down_bias))

    same, exact = plain(*inputs, dtype), plain(*inputs, torch.float64)
    assert_as_good_as(ours, same[0], exact[0], 2.0)
    for i, grad in enumerate(gradients(ours, inputs)):
        assert_as_good_as(grad, same[1][i], exact[1][i], 3.0, name=f"gradient {i}")


def test_everything_may_be_dropped():
    inputs = mlp_inputs(torch.float32, True)
    ours = _triton_mlp.mlp(*inputs, "gelu", True, 1.0)
    assert_same_bits(ours, inputs[4].expand_as(ours).contiguous())
    assert all(g.isfinite().all() for g in gradients(ours, inputs))


@each_dtype
def test_recomputing_changes_no_bit(dtype):
    inputs = mlp_inputs(dtype, True)
    found = []
    for keep in (True, False):
        torch.manual_seed(5)
        y = _triton_mlp.mlp(*inputs, "gelu", True, 0.2, keep=keep)
        found.append((y, *gradients(y, inputs)))
    for a, b in zip(*found, strict=True):
        assert_same_bits(a, b)


@pytest.mark.parametrize("T", [1, 16, 17, 64, 65, 300])
def test_bias_gradients_of_any_number_of_rows(T, poisoned):  # noqa: F811
    inputs = mlp_inputs(torch.float32, True, T=T)
    ours = gradients(_triton_mlp.mlp(*inputs, "gelu", True), inputs)
    exact_in = [x.detach().double().requires_grad_() for x in inputs]
    exact = gradients(mlp.reference(*exact_in, "gelu", True), exact_in)
    theirs = gradients(mlp.torch_mlp(*inputs, "gelu", True), inputs)
    for a, b, c in zip(ours, theirs, exact, strict=True):
        assert_as_good_as(a, b, c, 3.0)


def test_chunks_are_a_function_of_the_shape():
    assert [_triton_mlp.chunk_of(n) for n in (1, 64, 16_384, 65_536, 10**6)] == [4, 4, 4, 16, 256]


@pytest.mark.parametrize("autocast", [torch.bfloat16, torch.float16])
def test_autocast_gives_torchs_dtypes(autocast):
    inputs = mlp_inputs(torch.float32, True)
    with torch.autocast(DEVICE, autocast):
        ours, theirs = (run(*inputs, "gelu", True) for run in (_triton_mlp.mlp, mlp.torch_mlp))
    assert ours.dtype == theirs.dtype == autocast
    exact_in = [x.detach().double().requires_grad_() for x in inputs]
    exact = mlp.reference(*exact_in, "gelu", True)
    assert_as_good_as(ours, theirs, exact, 2.0)
    grads = gradients(ours, inputs), gradients(theirs, inputs), gradients(exact, exact_in)
    assert all(g.dtype == torch.float32 for g in grads[0])
    for three in zip(*grads, strict=True):
        a, b, c = three
        assert_as_good_as(a.to(autocast), b.to(autocast), c, 3.0)


@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize("p", [0.0, 0.5])
def test_operators_pass_torchs_own_check(gated, p):
    rows = 2 * F if gated else F
    h, bias = torch.randn(T, rows, device=DEVICE), torch.randn(rows, device=DEVICE)
    seed = torch.tensor([7], device=DEVICE) if p else None
    how = "gelu", gated, p
    torch.library.opcheck(_triton_mlp.ACTIVATE.registered, (h, bias, seed, *how))
    grad = torch.randn(T, F, device=DEVICE)
    for wants in ((True, True), (False, False)):
        arguments = h, bias, grad, seed, *how, *wants
        torch.library.opcheck(_triton_mlp.ACTIVATE_BACKWARD.registered, arguments)


def test_one_graph_for_all_numbers_of_rows():
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    run = torch.compile(_triton_mlp.mlp, fullgraph=True, dynamic=True, backend="aot_eager")
    for rows in (37, 20, 5):
        inputs = mlp_inputs(torch.float32, True, T=rows)
        for p in (0.0,):
            ours, eager = run(*inputs, "gelu", True, p), _triton_mlp.mlp(*inputs, "gelu", True, p)
            torch.testing.assert_close(ours, eager)
            for a, b in zip(gradients(ours, inputs), gradients(eager, inputs), strict=True):
                torch.testing.assert_close(a, b)
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1


def loss_inputs(dtype, N=21, V=97):
    make = {"device": DEVICE, "dtype": dtype, "requires_grad": True}
    x, weight, bias = (torch.randn(*s, **make) for s in ((N, W), (V, W), (V,)))
    labels = torch.arange(N, device=DEVICE) * 37 % V
    labels[::5] = -100
    return x, weight, bias, labels


@each_dtype
@pytest.mark.parametrize("V", [3, 64, 97, 4096, 4100])
def test_loss_in_chunks_of_a_few_rows(dtype, V, monkeypatch, poisoned):  # noqa: F811
    monkeypatch.setattr(_triton_cross_entropy, "LOGITS_PER_CHUNK", 5 * V)
    *inputs, labels = loss_inputs(dtype, V=V)
    how = {"label_smoothing": 0.1, "z_loss": 0.01}
    exact_in = [x.detach().double().requires_grad_() for x in inputs]
    forms = (
        (_triton_cross_entropy.linear_cross_entropy, inputs),
        (linear_cross_entropy.torch_linear_cross_entropy, inputs),
        (linear_cross_entropy.reference, exact_in),
    )
    losses = [run(*given, labels, **how) for run, given in forms]
    floor = 4 * torch.finfo(dtype).eps * losses[2].item()
    assert_as_good_as(*losses, 2.0, floor)
    grads = [torch.autograd.grad(y, given) for y, (_, given) in zip(losses, forms, strict=True)]
    for three in zip(*grads, strict=True):
        assert_as_good_as(*three, 3.0)


@pytest.mark.parametrize("dtype", DTYPES)
def test_scores_may_be_minus_infinite_and_nan_stays(dtype):
    z = torch.zeros(3, 64, device=DEVICE, dtype=dtype)
    z[0, 5:] = -float("inf")
    z[1, 7] = float("nan")
    z[2, 3] = float("inf")
    labels = torch.tensor([1, 2, 3], device=DEVICE)
    losses = _triton_cross_entropy.CROSS_ENTROPY(z, labels, 0.0, 0.0, True)
    assert losses[0].item() == pytest.approx(1.6094379)
    assert losses[1:].isnan().all()
    assert (z[0, 5:] == 0).all() and z[1].isnan().all()


def test_loss_operator_passes_torchs_own_check():
    z, labels = torch.randn(5, 64, device=DEVICE), torch.arange(5, device=DEVICE)
    arguments = z, labels, 0.1, 0.01, True
    torch.library.opcheck(_triton_cross_entropy.CROSS_ENTROPY.registered, arguments)
