"""All layers as one call of the native engine: right in every family and tier, and only taken where
it computes what the modules would.
"""

import dataclasses

import pytest
import torch
from closeness import assert_as_good_as, assert_same_bits
from native_harness import each_dtype, each_tier, needs_engine
from tiny import FAMILIES, batch_of, exact, hf_model, inputs, our_model, padded, real_rows

import encoder_fast as ef
from encoder_fast.kernels import _native

pytestmark = needs_engine

WIDE = {"hidden_size": 128, "num_attention_heads": 2, "intermediate_size": 200}
"""Heads of 64: rope in the epilogue of the projection. The tiny models have heads of 8."""
LENGTHS = (1, 2, 15, 33, 40)
each_family = pytest.mark.parametrize("family", FAMILIES)


def no_fused(model):
    """The same model, layer by layer."""
    model.encoder.ops = dataclasses.replace(model.ops, layers=None)
    return model


def counted(model):
    """Counts the calls that the engine took; `[0]` at first."""
    taken, run = [0], model.ops.layers

    def layers(*args):
        result = run(*args)
        taken[0] += result is not None
        return result

    model.encoder.ops = dataclasses.replace(model.ops, layers=layers)
    return taken


@torch.no_grad()
def check(family, dtype, lengths=LENGTHS, **changes):
    arguments = inputs(family, lengths)
    model = our_model(family, dtype=dtype, backend="native", **changes)
    taken = counted(model)
    ours = model(**arguments).last_hidden_state
    assert taken == [1]
    plain = hf_model(family, dtype=dtype, **changes)(**arguments).last_hidden_state
    oracle = exact(family, **changes)(**arguments).last_hidden_state
    mask = arguments["attention_mask"]
    assert_as_good_as(*(real_rows(x, mask) for x in (ours, plain, oracle)), factor=3.0)


@each_tier
@each_dtype
@each_family
def test_every_family_on_every_tier(family, dtype, tier):
    with _native.use_tier(tier):
        check(family, dtype)
        check(family, dtype, **WIDE)


@each_dtype
@pytest.mark.parametrize(
    "changes",
    [
        {"hidden_size": 120, "num_attention_heads": 5, "intermediate_size": 77},
        {"hidden_size": 36, "num_attention_heads": 3, "intermediate_size": 1},
        {"attention_bias": True, "mlp_bias": True, "norm_bias": True},
        {"hidden_activation": "relu"},
        {"hidden_activation": "silu"},
        {"hidden_activation": "gelu_new"},
        {"hidden_activation": "tanh"},
        {"num_hidden_layers": 1},
    ],
    ids=str,
)
def test_other_widths_biases_and_activations(changes, dtype):
    check("MB", dtype, **changes)


@each_dtype
@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("length", [5, 64, 130, 300])
def test_rows_shared_out_in_blocks_or_columns(length, threads, dtype):
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        check("MB", dtype, (length, 1, length), **WIDE)
    finally:
        torch.set_num_threads(before)


@torch.no_grad()
@each_dtype
@each_family
def test_alone_packed_padded_and_any_number_of_threads_give_the_same_bits(family, dtype):
    model, arguments = our_model(family, dtype=dtype, **WIDE), inputs(family, LENGTHS)
    padded_rows = real_rows(model(**arguments).last_hidden_state, arguments["attention_mask"])
    batch = batch_of(arguments)
    packed = model(batch).last_hidden_state
    assert_same_bits(packed, padded_rows)
    before = torch.get_num_threads()
    for threads in (1, 2, 4):
        torch.set_num_threads(threads)
        assert_same_bits(model(batch).last_hidden_state, packed)
    torch.set_num_threads(before)
    for b, rows in enumerate(packed.split(LENGTHS)):
        ids = arguments["input_ids"][b, : LENGTHS[b]].tolist()
        types = arguments.get("token_type_ids")
        types = None if types is None else [types[b, : LENGTHS[b]].tolist()]
        alone = ef.Batch.from_lists([ids], types)
        assert_same_bits(model(alone).last_hidden_state, rows)


@torch.no_grad()
def test_holes_empty_rows_and_empty_batches():
    model = our_model("MB", **WIDE)
    taken = counted(model)
    ids, mask = padded("MB", (40, 30, 20))
    mask[0, 5:17] = 0
    mask[1] = 0
    got = model(ids, mask).last_hidden_state
    wanted = no_fused(our_model("MB", backend="reference", **WIDE))(ids, mask).last_hidden_state
    torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-4)
    assert not got[1].any()
    assert model(ef.Batch.from_lists([])).last_hidden_state.shape == (0, 128)
    assert model(ef.Batch.from_lists([[], [5, 6], []])).last_hidden_state.shape == (2, 128)
    assert taken == [3]


@torch.no_grad()
def test_nan_stays_in_its_text():
    model = our_model("MB", dtype=torch.bfloat16, **WIDE)
    ids = [list(range(3, 40)), list(range(5, 50))]
    clean = model(ef.Batch.from_lists(ids)).last_hidden_state
    model.encoder.embeddings.token.weight[49] = float("nan")
    dirty = model(ef.Batch.from_lists(ids)).last_hidden_state
    assert_same_bits(dirty[:37], clean[:37])
    assert dirty[37:].isnan().all()
