"""The rule for answers, and the operations that a speed is a part of the roof by."""

import pytest
import torch

from encoder_fast.architectures import architecture_of
from encoder_fast.benchmarks import accuracy, models, models_suite
from encoder_fast.config_json import Settings


def test_pooled_answers_are_compared_with_pooled_answers():
    lengths = (3, 5)
    hidden = torch.randn(8, 4)
    pooled = accuracy.pool(hidden, lengths)
    assert torch.equal(pooled[1], hidden[3:].mean(0))
    assert accuracy.judge(pooled, pooled, pooled + 1e-3, int8=False).reason is None
    assert "shape" in accuracy.judge(hidden, pooled, pooled, int8=False).reason


def test_flops_are_those_of_the_paper_shapes():
    """ModernBERT-base: 110.3 M parameters in the linears, 220.6 MFLOP a token beside attention."""
    values = models.CONFIGS["modernbert-base"]
    config = architecture_of("modernbert").config(Settings(values))
    one = models_suite.flops(config, (1,))
    assert one == pytest.approx(220.6e6, rel=0.002)
    assert models_suite.flops(config, (1, 1)) == 2 * one


def test_int8_is_judged_by_its_cosine_and_floats_by_the_baselines_error():
    oracle = torch.randn(50, 16)
    noise = torch.randn(50, 16)
    for scale, good in ((0.02, True), (0.04, False)):
        verdict = accuracy.judge(oracle + scale * noise, oracle, oracle + 0.01 * noise, int8=False)
        assert (verdict.reason is None) == good
    for scale, good in ((0.1, True), (0.2, False)):
        verdict = accuracy.judge(oracle + scale * noise, oracle, oracle, int8=True)
        assert (verdict.reason is None) == good
