"""attention on the triton backend, beyond what test_ops and test_attention say of every one."""

import numpy as np
import pytest
import torch
from closeness import assert_as_good_as, assert_same_bits
from op_harness import layout, layout_of
from triton_harness import DEVICE, DTYPES, each_dtype, kept, poisoned  # noqa: F401

from encoder_fast.kernels import _triton_attention as ours
from encoder_fast.kernels import attention, rope
from encoder_fast.kernels._triton_attention_launch import grid, launch, padded_width

EDGES = (1, 63, 64, 65, 66, 127, 128, 129, 131, 192, 193)


def draw(T, H=1, D=16, dtype=torch.float32):
    return torch.randn(T, 3, H, D, device=DEVICE).to(dtype)


def run(qkv, where, half, p=0.0, rotation=None):
    plan = ours.prepare(where, (half,), qkv.dtype)
    return ours.attention(qkv, plan, half, p, rotation=rotation)[0]


def with_gradient(function, qkv, *arguments, **named):
    """Result, and the gradient of a cotangent that does not lie as the result does."""
    qkv = qkv.detach().requires_grad_()
    o = function(qkv, *arguments, **named)
    generator = torch.Generator(DEVICE).manual_seed(3)
    cotangent = torch.randn(o.mT.shape, generator=generator, device=DEVICE).mT.to(o)
    return o, torch.autograd.grad(o, qkv, cotangent)[0]


def specified(qkv, where, half, rotation=None):
    if rotation is not None:
        qkv = rope.reference(qkv, *rotation)
    return attention.reference(qkv, where, half)[0]


def assert_specified(qkv, where, half, rotation=None):
    mine = with_gradient(run, qkv, where, half, rotation=rotation)
    same = with_gradient(specified, qkv, where, half, rotation)
    wide = None if rotation is None else tuple(x.double() for x in rotation)
    exact = with_gradient(specified, qkv.double(), where, half, wide)
    assert_as_good_as(mine[0], same[0], exact[0], 2.0, name="o")
    # Rounding of dq and dk happens at the scale of dv.
    floor = 4 * torch.finfo(qkv.dtype).eps * exact[1].abs().max().item()
    assert_as_good_as(mine[1], same[1], exact[1], 3.0, floor, name="d qkv")


@pytest.mark.parametrize("half", [0, 1, 4, 63, 64, 65, 128])
def test_windows_at_the_edges_of_tiles(half, poisoned):  # noqa: F811
    assert_specified(draw(sum(EDGES)), layout(*EDGES), half)


def test_global_at_the_edges_of_tiles(poisoned):  # noqa: F811
    assert_specified(draw(sum(EDGES)), layout(*EDGES), None)


@each_dtype
@pytest.mark.parametrize("half", [None, 64, 70], ids=["global", "local", "window"])
def test_rotates_like_rope_before_attention(dtype, half, poisoned):  # noqa: F811
    where = layout(70, 1, 130)
    qkv = draw(201, 2, 16, dtype)
    assert_specified(qkv, where, half, rope.rope_tables(where.columns_T.to(DEVICE), 100.0, 16))


@pytest.mark.parametrize("half", [None, 64, 70], ids=["global", "local", "window"])
@pytest.mark.parametrize("D", [6, 40, 130])
def test_rotates_padded_heads(half, D, poisoned):  # noqa: F811
    where = layout(70, 20)
    assert_specified(draw(90, 1, D), where, half, rope.rope_tables(where.columns_T, 100.0, D))


@pytest.mark.parametrize("half", [None, 4, 64])
def test_holes_in_several_tiles(half, poisoned):  # noqa: F811
    columns = [list(range(0, 280, 2)), [5], [], [*range(70), *range(100, 170)]]
    assert_specified(draw(281), layout_of(columns), half)


@pytest.mark.parametrize("D, dtype", [(256, torch.float32), (200, torch.bfloat16)])
@pytest.mark.parametrize("half", [None, 4])
def test_widest_heads(D, dtype, half, poisoned):  # noqa: F811
    assert_specified(draw(75, 1, D, dtype), layout(70, 5), half)


@each_dtype
@pytest.mark.parametrize("half", [None, 64, 70], ids=["global", "local", "window"])
def test_C56_dropout_is_philox_of_the_position(dtype, half, poisoned):  # noqa: F811
    if DEVICE == "cuda":
        pytest.skip("reads the CPU's generator")
    lengths, H, p = (70, 9, 66), 2, 0.3
    qkv, where = draw(sum(lengths), H, 16, dtype), layout(*lengths)

    def plain(qkv):
        outputs, start = [], 0
        for n in lengths:
            i = np.arange(n)
            z = kept(seed, p, i[None, :], start + i[:, None], np.arange(H)[:, None, None])
            q, k, v = qkv[start : start + n].permute(1, 2, 0, 3)
            s = (q @ k.mT * q.shape[-1] ** -0.5).float() if dtype == qkv.dtype else q @ k.mT / 4
            near = attention.visible(torch.from_numpy(i), torch.from_numpy(i), half)
            w = s.masked_fill(~near, float("-inf")).softmax(-1) * z / (1 - p)
            outputs.append((w.to(v.dtype) @ v).transpose(0, 1))
            start += n
        return torch.cat(outputs)

    torch.manual_seed(11)
    seed = int(torch.randint(2**62, (1,)))
    torch.manual_seed(11)
    mine = with_gradient(run, qkv, where, half, p)
    same, exact = with_gradient(plain, qkv), with_gradient(plain, qkv.double())
    assert_as_good_as(mine[0], same[0], exact[0], 2.0)
    floor = 4 * torch.finfo(dtype).eps * exact[1].abs().max().item()
    assert_as_good_as(mine[1], same[1], exact[1], 3.0, floor)


@pytest.mark.parametrize("half", [None, 4])
def test_C56_everything_may_be_dropped(half):
    o, grad = with_gradient(run, draw(70), layout(70), half, 1.0)
    assert not o.any() and not grad.any()


@each_dtype
@pytest.mark.parametrize("half", [None, 0, 70])
def test_a_query_that_sees_itself_alone_gets_no_gradient(dtype, half):
    qkv = draw(3, 2, 16, dtype)
    qkv[:, :2] *= 50
    _, grad = with_gradient(run, qkv, layout(1, 1, 1), half)
    assert grad[:, 2].any() and not grad[:, :2].any()


@pytest.mark.parametrize("half", [None, 64, 70])
def test_C39_alone_and_in_a_batch_the_same_bits(half):
    rotation = rope.rope_tables(layout(1, 140, 70).columns_T.to(DEVICE), 100.0, 16)
    qkv, alone = draw(211), slice(1, 141)
    o, grad = with_gradient(run, qkv, layout(1, 140, 70), half, rotation=rotation)
    again = with_gradient(run, qkv, layout(1, 140, 70), half, rotation=rotation)
    assert_same_bits(o, again[0])
    assert_same_bits(grad, again[1])
    part = run(qkv[alone], layout(140), half, rotation=tuple(x[alone] for x in rotation))
    assert_same_bits(o[alone], part)


def maps_of(lengths, rows, count):
    return ours.tile_map(torch.tensor(lengths, dtype=torch.int64), rows, count).tolist()


def test_tiles_of_long_sequences_come_first():
    assert maps_of([3, 0, 130, 64], 64, 5) == [
        [3, 130, 0], [3, 130, 64], [3, 130, 128], [133, 64, 0], [0, 3, 0]
    ]  # fmt: skip
    unused = maps_of([3, 0, 130, 64], 64, 7)[5:]
    assert [length for _, length, _ in unused] == [0, 0]
    assert maps_of([], 64, 0) == []


@pytest.mark.parametrize("rows", [64, 128])
def test_bound_of_tiles_holds(rows):
    for lengths in ((), (1,), (0, 0), (rows,) * 3, (rows + 1, 1, rows - 1), tuple(range(200))):
        tiles = sum(-(-n // rows) for n in lengths)
        assert tiles <= ours.most_tiles(sum(lengths), len(lengths), rows)


def test_C20_programs_are_counted_on_one_axis():
    plan = ours.prepare(layout(*(1 + b % 3 for b in range(70_000))), (None, 64), torch.float32)
    for kernel in ("forward", "dq", "dkv", "local_forward"):
        run = launch(kernel, "sm_90", torch.bfloat16, 64)
        tiles = plan.fine_N3 if run.map_rows == 64 else plan.coarse_N3
        assert grid(tiles.shape[0], run, 12) == (70_000 * 12,)
    assert grid(5, launch("dq", "sm_90", torch.float32, 256), 2) == (5 * 2 * 2,)


def test_C61_launches_are_powers_of_two_that_the_maps_know():
    for kernel in ("forward", "dq", "dkv", "local_forward", "local_dq", "local_dkv"):
        for D in (1, 16, 40, 64, 128, 256):
            for dtype in DTYPES:
                run = launch(kernel, "sm_80", dtype, D)
                assert run.map_rows in (64, 128) and run.map_rows % run.rows == 0
                assert run.block in (16, 32, 64, 128) and run.warps in (4, 8)
    assert [padded_width(D) for D in (1, 5, 16, 17, 40, 64, 96, 256)] == [
        16, 16, 16, 32, 64, 64, 128, 256
    ]  # fmt: skip


def tail_of(where, half, p, D):
    plan = ours.prepare(where, (half,), torch.float32)
    cos, sin = rope.rope_tables(where.columns_T, 100.0, D)
    seed = torch.tensor([7], device=DEVICE) if p else None
    return cos, sin, plan.fine_N3, plan.coarse_N3, plan.columns_T, plan.holes, seed, half, p


@pytest.mark.parametrize("half", [-1, 4])
@pytest.mark.parametrize("p", [0.0, 0.5])
def test_operators_pass_torchs_own_check(half, p):
    qkv, tail = draw(9), tail_of(layout(4, 5), half, p, 16)
    torch.library.opcheck(ours.ATTEND.registered, (qkv, *tail, True))
    o, stats = ours.ATTEND(qkv, *tail, True)
    torch.library.opcheck(
        ours.ATTEND_BACKWARD.registered, (torch.ones_like(o), qkv, o, stats, *tail)
    )


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast_gives_its_dtype(dtype):
    qkv = draw(9).requires_grad_()
    with torch.autocast(DEVICE, dtype):
        o = run(qkv, layout(4, 5), 4)
    assert o.dtype == dtype
    o.sum().backward()
    assert qkv.grad.dtype == torch.float32


class Traceable:
    """A layout with the host tensors that traced graphs read, as `Batch` has them."""

    def __init__(self, where):
        self.columns_T = where.columns_T
        self.lengths_B, self.spans_B = torch.tensor(where.lengths), torch.tensor(where.spans)


def test_one_graph_serves_every_batch():
    graphs = []

    def backend(graph, inputs):
        graphs.append(graph)
        return graph

    def attend(qkv, columns_T, lengths_B, spans_B, cos, sin):
        where = Traceable.__new__(Traceable)
        where.columns_T, where.lengths_B, where.spans_B = columns_T, lengths_B, spans_B
        plan = ours.prepare(where, (None, 4), qkv.dtype)
        o = ours.attention(qkv, plan, 4, rotation=(cos, sin))[0]
        return o + ours.attention(qkv, plan, None)[0]

    from torch._dynamo.backends.common import aot_autograd

    torch._dynamo.reset()
    count = aot_autograd(fw_compiler=backend)
    compiled = torch.compile(attend, backend=count, fullgraph=True, dynamic=True)
    holes = layout_of([[0, 3, 4, 20], [1], list(range(9))])
    for where in (layout(70, 3), holes, layout(5, 66, 9, 2)):
        T = sum(where.lengths)
        rotation = rope.rope_tables(where.columns_T, 100.0, 16)
        tensors = where.columns_T, torch.tensor(where.lengths), torch.tensor(where.spans), *rotation
        qkv = draw(T)

        def eager(qkv, where=where, rotation=rotation):
            return run(qkv, where, 4, rotation=rotation) + run(qkv, where, None)

        mine = with_gradient(compiled, qkv, *tensors)
        for a, b in zip(mine, with_gradient(eager, qkv), strict=True):
            assert_same_bits(a, b)
    assert len(graphs) == 2, "one graph each way"
