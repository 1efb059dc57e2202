"""The accuracy law, in one place: as good as plain torch in the same dtype, against a wider oracle.

    max |ours - oracle|  <=  factor * max |torch - oracle| + floor,   and so the root mean square

The factor is 2 for ops and 3 for gradients and whole models. The floor is a few units in the last
place of the dtype at the oracle's scale: plain torch may hit the oracle exactly, by luck or on
tiny inputs, and then 2 x 0 would be no law. Where the oracle is not finite in the dtype of `ours`,
`ours` must hold the same NaN or infinity, and nowhere else.
"""

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

ULPS = 4


def ulps(dtype: torch.dtype, scale: float | Tensor, count: float = ULPS) -> float:
    """`count` units in the last place of `dtype` at `scale` (the largest magnitude of a tensor)."""
    if isinstance(scale, Tensor):
        scale = _largest(scale.detach().double())
    return count * torch.finfo(dtype).eps * float(scale)


def assert_as_good_as(
    ours,
    torch_same_dtype,
    oracle,
    factor: float = 2.0,
    floor: float | None = None,
    name: str = "result",
) -> None:
    """Check `ours` by the law at the top of this file; print the errors and their ratio.

    Args:
        ours, torch_same_dtype, oracle: tensors, None, or lists, tuples and dicts of them, alike in
            structure. `oracle` is fp64, or at least wider than `ours`.
        floor: absolute error that is always allowed; None means `ULPS` units in the last place at
            the oracle's own scale. Give `ulps(dtype, scale)` where rounding happens at another
            scale (a difference of large terms).
        name: what to call the tensors in messages.

    Raises:
        AssertionError: shapes, dtypes, non-finite positions or errors out of law, with the worst
            coordinate.
    """
    for label, mine, plain, exact in _leaves(name, ours, torch_same_dtype, oracle):
        if mine is None or plain is None or exact is None:
            given = {"ours": mine, "torch": plain, "oracle": exact}
            missing = [key for key, value in given.items() if value is None]
            assert len(missing) == 3, f"{label}: None only in {missing}"
            continue
        _check_kind(label, mine, plain, exact)
        _check_one(label, mine.detach(), plain.detach(), exact.detach().double(), factor, floor)


def rows_that_differ(a: Tensor, b: Tensor) -> list[int]:
    """Indices along the first axis where the bits differ (NaN equals NaN, 0 differs from -0)."""
    assert a.shape == b.shape and a.dtype == b.dtype, f"{a.shape} {a.dtype} and {b.shape} {b.dtype}"
    if a.numel() == 0:
        return []
    same = ((a == b) & (a.signbit() == b.signbit())) | (a.isnan() & b.isnan())
    rows = (~same).reshape(a.shape[0] if a.ndim else 1, -1)
    return rows.any(1).nonzero()[:, 0].tolist()


def assert_same_bits(ours: Tensor, expected: Tensor, name: str = "result") -> None:
    """Check that two tensors are bit for bit the same."""
    rows = rows_that_differ(ours.detach(), expected.detach())
    if rows:
        largest = (ours.double() - expected.double()).abs().nan_to_num(nan=math.inf).max().item()
        found = f"{len(rows)} rows differ, by up to {largest:.3e}"
        raise AssertionError(f"{name}: {found}: {rows[:20]}")


def _leaves(name: str, ours, plain, exact):
    """Pairs up the tensors of three like-structured trees."""
    if isinstance(ours, Mapping):
        assert ours.keys() == plain.keys() == exact.keys(), (
            f"{name}: keys {list(ours)}, torch {list(plain)}, oracle {list(exact)}"
        )
        for key in ours:
            yield from _leaves(f"{name}.{key}", ours[key], plain[key], exact[key])
    elif isinstance(ours, Sequence):
        assert len(ours) == len(plain) == len(exact), (
            f"{name}: {len(ours)} items, torch {len(plain)}, oracle {len(exact)}"
        )
        for i, three in enumerate(zip(ours, plain, exact, strict=True)):
            yield from _leaves(f"{name}[{i}]", *three)
    else:
        yield name, ours, plain, exact


def _check_kind(label: str, mine: Tensor, plain: Tensor, exact: Tensor) -> None:
    shapes = {"ours": mine.shape, "torch": plain.shape, "oracle": exact.shape}
    assert len(set(shapes.values())) == 1, f"{label}: {shapes}"
    assert mine.dtype == plain.dtype, f"{label}: dtype {mine.dtype}, torch {plain.dtype}"
    wider = torch.finfo(exact.dtype).eps < torch.finfo(mine.dtype).eps
    assert wider or exact.dtype == torch.float64, f"{label}: oracle {exact.dtype} for {mine.dtype}"


def _check_finite(label: str, mine: Tensor, rounded: Tensor) -> None:
    for kind, test in (("NaN", torch.isnan), ("inf", torch.isposinf), ("-inf", torch.isneginf)):
        here, there = test(mine), test(rounded)
        assert torch.equal(here, there), (
            f"{label}: {kind} at {int(here.sum())} places, oracle at {int(there.sum())}; "
            f"first difference at {tuple((here != there).nonzero()[0].tolist())}"
        )


def _check_one(
    label: str, mine: Tensor, plain: Tensor, exact: Tensor, factor: float, floor: float | None
) -> None:
    if mine.numel() == 0:
        return
    rounded = exact.to(mine.dtype)
    _check_finite(label, mine, rounded)
    finite = rounded.isfinite()
    ours = torch.where(finite, mine.double() - exact, 0.0).abs()
    # A place where plain torch overflows says nothing about accuracy and must not widen the bound.
    theirs = torch.where(finite & plain.isfinite(), plain.double() - exact, 0.0).abs()
    scale = torch.where(finite, exact, 0.0)
    for kind, measure in (("max", _largest), ("rms", _rms)):
        error, plain_error = measure(ours), measure(theirs)
        allowed = ulps(mine.dtype, measure(scale)) if floor is None else floor
        ratio = error / plain_error if plain_error else (math.inf if error else 0.0)
        line = f"{label}: {kind} error {error:.3e}, torch {plain_error:.3e}, ratio {ratio:.2f}"
        print(line)
        if error > factor * plain_error + allowed:
            at = tuple(i.item() for i in torch.unravel_index(ours.argmax(), ours.shape))
            three = ", ".join(f"{x[at].item():.9g}" for x in (mine, plain, exact))
            raise AssertionError(
                f"{line}, allowed {factor:g} x torch + {allowed:.3e}; "
                f"worst at {at}: ours, torch, oracle = {three}"
            )


def _largest(x: Tensor) -> float:
    return x.abs().max().item() if x.numel() else 0.0


def _rms(x: Tensor) -> float:
    return x.square().mean().sqrt().item()
