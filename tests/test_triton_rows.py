"""add_norm, rope, embed and pool on the triton backend, beyond what test_ops says of every one."""

import pytest
import torch
from closeness import assert_as_good_as, assert_same_bits
from op_harness import offsets
from triton_harness import DEVICE, each_dtype, poisoned  # noqa: F401

from encoder_fast.kernels import (
    _triton_add_norm,
    _triton_embed,
    _triton_pool,
    _triton_rope,
    add_norm,
    embed,
    pool,
    rope,
)
from encoder_fast.kernels.pool import MODES

W, V = 40, 11


def draw(*shape, dtype=torch.float32):
    return torch.randn(shape, device=DEVICE).to(dtype).requires_grad_()


def embed_inputs(T, dtype=torch.float32, ids=None):
    """Arguments of embed: three tables, and rows of them that repeat."""
    t = torch.arange(T, device=DEVICE)
    ids = (7 * t * t + 3 * t) % V if ids is None else ids
    tables = draw(V, W, dtype=dtype), draw(5, W, dtype=dtype), draw(2, W, dtype=dtype)
    norm = draw(W, dtype=dtype), draw(W, dtype=dtype), 1e-12
    return ids, None, tables[0], tables[1], t % 5, tables[2], t % 2, *norm


def doubles(arguments):
    return [
        x.detach().double().requires_grad_()
        if isinstance(x, torch.Tensor) and x.is_floating_point()
        else x
        for x in arguments
    ]


def gradients(result, arguments):
    leaves = [x for x in arguments if isinstance(x, torch.Tensor) and x.requires_grad]
    generator = torch.Generator(DEVICE).manual_seed(3)
    grad = torch.randn(result.shape, generator=generator, device=DEVICE).to(result)
    return torch.autograd.grad(result, leaves, grad)


def assert_specified(ours, theirs, specified, arguments):
    """Result and gradients of one op, as good as torch's."""
    exact_in = doubles(arguments)
    results = ours(*arguments), theirs(*arguments), specified(*exact_in)
    assert_as_good_as(*results, 2.0)
    grads = [
        gradients(y, x) for y, x in zip(results, (arguments, arguments, exact_in), strict=True)
    ]
    for three in zip(*grads, strict=True):
        assert_as_good_as(*three, 3.0)


# Around the edges of chunks, and many rows of one segment: every token reads row 4 of its table.
@pytest.mark.parametrize("T", [1, 63, 64, 65, 127, 128, 129, 300])
@pytest.mark.parametrize("same", [False, True])
def test_table_gradients_at_the_edges_of_chunks(T, same, poisoned):  # noqa: F811
    ids = torch.full((T,), 4, device=DEVICE) if same else None
    assert_specified(
        _triton_embed.embed, embed.torch_embed, embed.reference, embed_inputs(T, ids=ids)
    )


def test_indices_of_32_bits_and_with_strides():
    ids, *rest = embed_inputs(70)
    spread = torch.stack((ids, ids), 1)[:, 0]
    wide, narrow = _triton_embed.embed(ids, *rest), _triton_embed.embed(spread.int(), *rest)
    assert_same_bits(wide, narrow)
    for a, b in zip(gradients(wide, rest), gradients(narrow, rest), strict=True):
        assert_same_bits(a, b)


def test_an_index_outside_its_table_gives_nan_and_reads_nothing():
    ids, *rest = embed_inputs(6)
    good = _triton_embed.embed(ids, *rest)
    ids = ids.clone()
    ids[2], ids[4] = V, -1
    bad = _triton_embed.embed(ids, *rest)
    assert bad[[2, 4]].isnan().all()
    assert_same_bits(bad[[0, 1, 3, 5]], good[[0, 1, 3, 5]])


@each_dtype
def test_tables_and_norms_of_several_dtypes(dtype):
    arguments = list(embed_inputs(20))
    arguments[3] = arguments[3].detach().to(dtype).requires_grad_()
    y = _triton_embed.embed(*arguments)
    assert y.dtype == torch.float32
    torch.testing.assert_close(y, embed.reference(*arguments), rtol=1e-5, atol=1e-5)
    assert [g.dtype for g in gradients(y, arguments)].count(dtype) >= 1


@pytest.mark.parametrize("frozen", ["token", "all tables", "norm"])
def test_frozen_parts_get_no_gradient(frozen):
    arguments = list(embed_inputs(20))
    for i in {"token": (2,), "all tables": (2, 3, 5), "norm": (7, 8)}[frozen]:
        arguments[i] = arguments[i].detach()
    ours, theirs = (
        gradients(f(*arguments), arguments) for f in (_triton_embed.embed, embed.reference)
    )
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


def cases_of_pool():
    for lengths in ((64,), (63, 65), (1, 130, 0, 64, 5), (192, 1), (0, 200)):
        for mode in MODES:
            yield pytest.param(lengths, mode, id=f"{mode}-{'-'.join(map(str, lengths))}")


@pytest.mark.parametrize("lengths, mode", list(cases_of_pool()))
def test_pools_at_the_edges_of_chunks(lengths, mode, poisoned):  # noqa: F811
    arguments = draw(sum(lengths), W), offsets(lengths).to(DEVICE), mode
    assert_specified(_triton_pool.pool, pool.torch_pool, pool.reference, arguments)


@each_dtype
def test_equal_maxima_share_the_gradient(dtype):
    x = torch.zeros(150, W, device=DEVICE, dtype=dtype).requires_grad_()
    y = _triton_pool.pool(x, offsets((150,)).to(DEVICE), "max")
    (grad,) = torch.autograd.grad(y.sum(), x)
    torch.testing.assert_close(grad, torch.full_like(grad, 1 / 150))


@pytest.mark.parametrize("place", [0, 70, 149])
def test_a_maximum_over_nan_is_nan(place):
    x = torch.randn(150, W, device=DEVICE)
    x[place, 3] = float("nan")
    y = _triton_pool.pool(x, offsets((150,)).to(DEVICE), "max")
    assert y.isnan().nonzero().tolist() == [[0, 3]]


def test_rows_beyond_the_last_sequence_count_for_nothing(poisoned):  # noqa: F811
    """As in a batch that is padded to a number of tokens that a captured graph has."""
    for mode in MODES:
        x = draw(200, W)
        y = _triton_pool.pool(x, offsets((3, 70)).to(DEVICE), mode)
        assert_same_bits(y, _triton_pool.pool(x[:73], offsets((3, 70)).to(DEVICE), mode))
        (grad,) = torch.autograd.grad(y.sum(), x)
        assert grad[:73].any() and not grad[73:].any()


def norm_inputs(T=70, dtype=torch.float32):
    return draw(T, W, dtype=dtype), draw(T, W, dtype=dtype), draw(W), draw(W), 1e-5


def calls():
    """Name -> (the op on triton, the specification, arguments for a number of tokens)."""

    def rope_inputs(T):
        return draw(T, 3, 2, 8), *rope.rope_tables(torch.arange(T, device=DEVICE), 10000.0, 8)

    def first(function):
        return lambda *arguments: function(*arguments)[0]

    def whole(T):
        return draw(T, W), offsets((T - 3, 0, 3)).to(DEVICE)

    return {
        "add_norm": (first(_triton_add_norm.add_norm), first(add_norm.reference), norm_inputs),
        "rope": (_triton_rope.rope, rope.reference, rope_inputs),
        "embed": (_triton_embed.embed, embed.reference, embed_inputs),
        **{
            f"pool {mode}": (
                lambda x, cu, mode=mode: _triton_pool.pool(x, cu, mode),
                lambda x, cu, mode=mode: pool.reference(x, cu, mode),
                whole,
            )
            for mode in ("mean", "max", "last")
        },
    }


each_call = pytest.mark.parametrize("name", calls())


@each_call
def test_the_same_call_gives_the_same_bits(name):
    ours, _, make = calls()[name]
    arguments = make(150)
    found = []
    for _ in range(2):
        y = ours(*arguments)
        found.append((y, *gradients(y, arguments)))
    for a, b in zip(*found, strict=True):
        assert_same_bits(a, b)


@each_call
def test_one_graph_for_all_numbers_of_tokens(name):
    ours, _, make = calls()[name]
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    run = torch.compile(ours, fullgraph=True, dynamic=True, backend="aot_eager")
    for T in (150, 70, 12):
        arguments = make(T)
        compiled, eager = run(*arguments), ours(*arguments)
        assert_same_bits(compiled, eager)
        for a, b in zip(gradients(compiled, arguments), gradients(eager, arguments), strict=True):
            assert_same_bits(a, b)
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1


@each_call
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_autocast_gives_torchs_dtype(name, dtype):
    ours, specified, make = calls()[name]
    arguments = make(12)
    with torch.autocast(DEVICE, dtype):
        y, theirs = ours(*arguments), specified(*arguments)
    assert y.dtype == torch.float32
    torch.testing.assert_close(y, theirs.float(), rtol=1e-4, atol=1e-4)
    assert all(g.dtype == torch.float32 for g in gradients(y, arguments))


def operator_calls():
    x, dy, cu = torch.randn(70, W), torch.randn(3, W), offsets((60, 0, 10))
    ids, _, token, position, positions, kind, kinds, weight, bias, eps = embed_inputs(20)
    tables = [x.detach() if x.is_floating_point() else x for x in (token, kind, position)]
    pairs = tables[0], ids, tables[1], kinds, tables[2], positions, weight.detach(), bias.detach()
    no_types = *pairs[:2], None, None, None, None, *pairs[6:]
    given = torch.randn(20, W), None, *pairs[2:]
    y = pool.torch_pool(x, cu, "max")
    none = (None, None)
    return {
        "embed": (_triton_embed.EMBED, (*pairs, eps, torch.float32, False, True)),
        "embed inference": (_triton_embed.EMBED, (*no_types, eps, torch.float32, True, False)),
        "embed vectors": (_triton_embed.EMBED, (*given, eps, torch.bfloat16, False, True)),
        "table": (_triton_embed.TABLE_GRADIENT, (x[:20], ids, V, 2, torch.bfloat16)),
        "pool": (_triton_pool.POOL, (x, cu, "weighted")),
        "pool backward": (_triton_pool.POOL_BACKWARD, (dy, cu, "mean", 70, torch.bfloat16, *none)),
        "max backward": (_triton_pool.POOL_BACKWARD, (dy, cu, "max", 70, torch.float32, x, y)),
        "rotate": (
            _triton_rope.ROTATE,
            (torch.randn(7, 3, 2, 8), torch.randn(7, 4), torch.randn(7, 4), -1.0, 3),
        ),
        "add_norm": (
            _triton_add_norm.ADD_NORM,
            (x, torch.randn(70, W), weight.detach(), None, eps, False),
        ),
        "add_norm backward": (
            _triton_add_norm.ADD_NORM_BACKWARD,
            (x, None, x, x[:, 0].clone(), x[:, 1].clone(), weight.detach(), True, False),
        ),
    }


@pytest.mark.parametrize("name", operator_calls())
def test_operators_pass_torchs_own_check(name):
    operator, arguments = operator_calls()[name]
    arguments = [a.to(DEVICE) if isinstance(a, torch.Tensor) else a for a in arguments]
    torch.library.opcheck(operator.registered, tuple(arguments))
