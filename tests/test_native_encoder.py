"""All layers as one call of the native engine: right in every family and tier, and only taken where
it computes what the modules would.
"""

import dataclasses
import threading

import pytest
import torch
from closeness import assert_as_good_as, assert_same_bits
from tiny import FAMILIES, batch_of, exact, hf_model, inputs, our_model, padded, real_rows
from torch import nn

import encoder_fast as ef
from encoder_fast.kernels import _native

pytestmark = pytest.mark.skipif(_native.C is None, reason=str(_native.missing))

WIDE = {"hidden_size": 128, "num_attention_heads": 2, "intermediate_size": 200}
"""Heads of 64: rope in the epilogue of the projection. The tiny models have heads of 8."""
LENGTHS = (1, 2, 15, 33, 40)
each_family = pytest.mark.parametrize("family", FAMILIES)
each_dtype = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)


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
    model = our_model(family, dtype=dtype, **changes)
    taken = counted(model)
    ours = model(**arguments).last_hidden_state
    assert taken == [1]
    plain = hf_model(family, dtype=dtype, **changes)(**arguments).last_hidden_state
    oracle = exact(family, **changes)(**arguments).last_hidden_state
    mask = arguments["attention_mask"]
    assert_as_good_as(*(real_rows(x, mask) for x in (ours, plain, oracle)), factor=3.0)


@pytest.mark.parametrize("tier", _native.tiers())
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


@torch.no_grad()
@pytest.mark.parametrize(
    "change",
    [
        lambda p: p.mul_(1.5),
        lambda p: p.data.mul_(1.5),
        lambda p: setattr(p, "data", p.data * 1.5),
    ],
    ids=["in place", "through .data", "new .data"],
)
@pytest.mark.parametrize("name", ["weight", "bias"])
def test_a_changed_weight_is_seen(name, change):
    model, arguments = our_model("BE", **WIDE), inputs("BE")
    model(**arguments)
    for module in model.encoder.layers.modules():
        if isinstance(module, nn.Linear):
            change(getattr(module, name))
    taken = counted(model)
    got = model(**arguments).last_hidden_state
    assert taken == [1]
    wanted = no_fused(model)(**arguments).last_hidden_state
    torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-4)


class Adapter(nn.Module):
    """What an adapter library puts in place of a linear layer."""

    def __init__(self, base):
        super().__init__()
        self.base = base

    @property
    def weight(self):
        return self.base.weight

    @property
    def bias(self):
        return self.base.bias

    def forward(self, x):
        return 2 * self.base(x)


def hook(model):
    model.encoder.layers[1].mlp.register_forward_hook(lambda module, args, output: 2 * output)


def pre_hook(model):
    model.encoder.layers[0].attention.out.register_forward_pre_hook(
        lambda module, args: 2 * args[0]
    )


def adapter(model):
    model.encoder.layers[1].attention.qkv = Adapter(model.encoder.layers[1].attention.qkv)


def parametrised(model):
    class Double(nn.Module):
        def forward(self, weight):
            return 2 * weight

    linear = model.encoder.layers[1].attention.out
    nn.utils.parametrize.register_parametrization(linear, "weight", Double())


def replaced_forward(model):
    linear = model.encoder.layers[0].attention.out
    linear.forward = lambda x: 3 * nn.functional.linear(x, linear.weight, linear.bias)


@torch.no_grad()
@pytest.mark.parametrize("change", [hook, pre_hook, adapter, parametrised, replaced_forward])
@pytest.mark.parametrize("family", ["MB", "BE"])
def test_changed_modules_are_run(family, change):
    model, arguments = our_model(family), inputs(family)
    before = model(**arguments).last_hidden_state
    change(model)
    taken = counted(model)
    got = model(**arguments).last_hidden_state
    assert taken == [0]
    assert (got - before).abs().max() > 1e-3


def test_gradients_hidden_states_and_autocast_go_layer_by_layer():
    model, arguments = our_model("MB"), inputs("MB")
    taken = counted(model)
    model(**arguments).last_hidden_state.sum().backward()
    assert model.encoder.layers[0].attention.qkv.weight.grad is not None
    with torch.no_grad():
        assert len(model(**arguments, output_hidden_states=True).hidden_states) == 5
        with torch.autocast("cpu", torch.bfloat16):
            model(**arguments)
        model.train()
        model(**arguments)
    assert taken == [0]
    model.eval()
    with torch.inference_mode():
        model(**arguments)
    assert taken == [1]


@torch.no_grad()
@each_family
@pytest.mark.parametrize("dtype", [torch.float16, torch.float64, torch.bfloat16], ids=str)
def test_a_model_cast_after_loading(family, dtype):
    arguments = inputs(family, LENGTHS)
    model = our_model(family, dtype=torch.float32)
    model(**arguments)
    got = model.to(dtype)(**arguments).last_hidden_state
    wanted = our_model(family, dtype=dtype)(**arguments).last_hidden_state
    assert got.dtype == dtype
    torch.testing.assert_close(got, wanted, rtol=0.05, atol=0.05)


@torch.no_grad()
def test_parameters_of_a_functional_call_are_used():
    model, arguments = our_model("MB"), inputs("MB")
    model(**arguments)
    larger = {name: p * 1.1 for name, p in model.named_parameters()}
    got = torch.func.functional_call(model, larger, (), arguments).last_hidden_state
    for p in model.parameters():
        p.mul_(1.1)
    assert_same_bits(got, model(**arguments).last_hidden_state)


def test_two_python_threads_use_one_model():
    model = our_model("MB", **WIDE)
    batches = [ef.Batch.from_lists([[3 + (i * t) % 90 for t in range(50 + i)]]) for i in range(8)]
    with torch.no_grad():
        wanted = [model(batch).last_hidden_state for batch in batches]
    results = {}

    def work(name):
        with torch.no_grad():
            results[name] = [model(batch).last_hidden_state for _ in range(10) for batch in batches]

    threads = [threading.Thread(target=work, args=(name,)) for name in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for got in results.values():
        for x, y in zip(got, wanted * 10, strict=True):
            assert_same_bits(x, y)
