"""The accuracy law must reject what it claims to reject."""

import math

import pytest
import torch
from closeness import assert_as_good_as, assert_same_bits, rows_that_differ, ulps

EXACT = torch.linspace(-2, 3, 60, dtype=torch.float64).reshape(6, 10).exp()


def rounded(dtype, times: float = 1.0):
    """The oracle, off by a plain rounding in `dtype` times `times` everywhere."""
    return (EXACT * (1 + times * torch.finfo(dtype).eps)).to(dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_error_of_plain_torch_passes_and_far_more_fails(dtype):
    assert_as_good_as(rounded(dtype), rounded(dtype), EXACT)
    assert_as_good_as(rounded(dtype, 20), rounded(dtype, 12), EXACT)
    with pytest.raises(AssertionError, match=r"max error .* ratio .* worst at \(5, 9\)"):
        assert_as_good_as(rounded(dtype, 100), rounded(dtype, 12), EXACT)


def test_small_error_everywhere_fails_by_root_mean_square():
    noisy, plain = rounded(torch.float32), rounded(torch.float32)
    plain[5, 9] += 1.0
    noisy += 0.9
    with pytest.raises(AssertionError, match="rms error"):
        assert_as_good_as(noisy, plain, EXACT)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_non_finite_only_where_the_oracle_is(value):
    bad = rounded(torch.float32)
    bad[2, 3] = value
    with pytest.raises(AssertionError, match=r"first difference at \(2, 3\)"):
        assert_as_good_as(bad, rounded(torch.float32), EXACT)
    exact = EXACT.clone()
    exact[2, 3] = value
    assert_as_good_as(bad, bad, exact)


def test_overflow_of_plain_torch_gives_no_slack():
    plain, bad = rounded(torch.float16), rounded(torch.float16, 200)
    plain[0, 0] = math.inf
    assert_as_good_as(rounded(torch.float16), plain, EXACT)
    with pytest.raises(AssertionError, match="allowed"):
        assert_as_good_as(bad, plain, EXACT)


def test_shape_dtype_structure_and_narrow_oracle_are_refused():
    x = rounded(torch.float32)
    for ours, plain, exact in (
        (x[:5], x, EXACT),
        (x, x.double(), EXACT),
        (x, x, EXACT.float()),
        ([x], [x, x], [EXACT, EXACT]),
        ({"a": x}, {"b": x}, {"a": EXACT}),
        (None, x, EXACT),
    ):
        with pytest.raises(AssertionError):
            assert_as_good_as(ours, plain, exact)


def test_floor_is_in_units_of_the_last_place():
    assert ulps(torch.float32, 2.0, 1) == 2**-22
    assert ulps(torch.bfloat16, torch.tensor([-3.0, 1.0])) == 4 * 3 * 2**-7
    exact = torch.zeros(4, dtype=torch.float64)
    ours, plain = torch.full((4,), 1e-6), torch.zeros(4)
    assert_as_good_as(ours, plain, exact, floor=1e-6)
    with pytest.raises(AssertionError):
        assert_as_good_as(ours, plain, exact)


def test_rows_that_differ_sees_single_bits_and_signs():
    a = torch.tensor([[0.0, 1.0], [2.0, math.nan], [3.0, 4.0], [5.0, 0.0]])
    b = a.clone()
    assert rows_that_differ(a, b) == []
    b[0, 0] = -0.0
    b[2, 1] = torch.nextafter(torch.tensor(4.0), torch.tensor(5.0))
    assert rows_that_differ(a, b) == [0, 2]
    assert rows_that_differ(a[0, 1], b[0, 1]) == []
    assert rows_that_differ(a[0, 0], b[0, 0]) == [0]
    with pytest.raises(AssertionError, match="2 rows differ"):
        assert_same_bits(a, b)
