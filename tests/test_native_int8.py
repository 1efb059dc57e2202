"""int8 of the native engine: what it says, and refused where it cannot serve."""

import pytest
import torch
from closeness import assert_same_bits
from native_harness import each_dtype
from test_native_encoder import LENGTHS, WIDE, each_family
from tiny import exact, inputs, our_model, real_rows
from torch import nn

import encoder_fast as ef
from encoder_fast.errors import BackendError
from encoder_fast.kernels import _native

INT8_TIERS = ("amx_bf16", "avx512_bf16", "amx_emulated")
needs_int8 = pytest.mark.skipif(not _native.has_int8(), reason="no int8 products on this CPU")


def cosine(a, b):
    return torch.cosine_similarity(a.double(), b.double(), dim=-1).mean().item()


def quantised(x):
    """One scale a row, to the nearest of 255 steps."""
    scale = x.abs().amax(-1, keepdim=True) / 127
    return torch.round(x / scale.where(scale > 0, 1)) * scale


def simulate_int8(model):
    """The reference with rounded inputs and weights in all products but the last of a layer."""
    for layer in model.encoder.layers:
        for linear in (layer.attention.qkv, layer.attention.out):
            linear.forward = lambda x, m=linear: nn.functional.linear(
                quantised(x), quantised(m.weight), m.bias
            )
        mlp, up = layer.mlp, layer.mlp.up
        mlp.forward = lambda x, m=mlp, up=up: m.ops.mlp(
            quantised(x), quantised(up.weight), up.bias, m.down.weight, m.down.bias, m.activation,
            m.gated,
        )  # fmt: skip
    return model


@needs_int8
@torch.no_grad()
@each_dtype
@each_family
@pytest.mark.parametrize("tier", [t for t in _native.tiers() if t in INT8_TIERS])
def test_int8_is_what_it_says(tier, family, dtype):
    # One layer: in several, a number that falls on another step moves many of the next layer.
    changes = WIDE | {"num_hidden_layers": 1}
    arguments = inputs(family, LENGTHS)
    with _native.use_tier(tier):
        model = our_model(family, dtype=dtype, precision="int8", **changes)
        got = model(**arguments).last_hidden_state
    simulated = simulate_int8(
        our_model(family, backend="reference", dtype=torch.float64, **changes)
    )(**arguments).last_hidden_state
    oracle = exact(family, **changes)(**arguments).last_hidden_state
    mask = arguments["attention_mask"]
    got, simulated, oracle = (real_rows(x, mask) for x in (got, simulated, oracle))
    unavoidable = 1 - cosine(simulated, oracle)
    if dtype == torch.float32:
        assert 1 - cosine(got, simulated) < 1e-3 * unavoidable
    else:
        assert 1 - cosine(got, oracle) < 1.5 * unavoidable


@needs_int8
@torch.no_grad()
def test_int8_of_what_is_not_finite():
    model = our_model("MB", dtype=torch.float32, precision="int8", **WIDE)
    batch = ef.Batch.from_lists([[5, 6, 7], [8, 9]])
    clean = model(batch).last_hidden_state
    model.encoder.embeddings.token.weight[8] = float("inf")
    dirty = model(batch).last_hidden_state
    assert_same_bits(dirty[:3], clean[:3])
    assert dirty[3:].isnan().all()
    with torch.no_grad():
        model.encoder.layers[0].mlp.up.weight[3, 4] = float("nan")
    assert model(batch).last_hidden_state[:3].isnan().any()


@needs_int8
def test_int8_refuses_what_it_does_not_serve():
    model, arguments = our_model("MB", precision="int8"), inputs("MB")
    with pytest.raises(RuntimeError, match="precision: 'int8' serves plain inference only"):
        model(**arguments)
    with torch.no_grad():
        with pytest.raises(ValueError, match="output_hidden_states"):
            model(**arguments, output_hidden_states=True)
        model.train()
        with pytest.raises(RuntimeError, match="serves plain inference only"):
            model(**arguments)
    with pytest.raises(BackendError, match=r"precision: got 'int8', .* native engine"):
        our_model("MB", backend="torch", precision="int8")
    with pytest.raises(BackendError, match="allowed are"):
        our_model("MB", precision="int4")
    with _native.use_tier("avx2"), pytest.raises(BackendError, match="avx2 has no int8"):
        our_model("MB", precision="int8")
