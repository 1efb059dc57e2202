"""The native engine's one call sees what was done to a model: other weights, other modules, hooks,
modes. It computes the same, or leaves the layers to be run one by one.
"""

import threading

import pytest
import torch
from closeness import assert_same_bits
from native_harness import needs_engine
from test_native_encoder import LENGTHS, WIDE, counted, each_family, no_fused
from tiny import inputs, our_model
from torch import nn

import encoder_fast as ef

pytestmark = needs_engine


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


@pytest.mark.parametrize("name", ["weight", "bias"])
def test_a_fused_optimiser_step_is_seen(name):
    # It counts no versions; here it changes one number, which no sample need show.
    model, arguments = our_model("BE", **WIDE), inputs("BE")
    with torch.no_grad():
        model(**arguments)
    parameter = getattr(model.encoder.layers[0].attention.out, name)
    parameter.grad = torch.zeros_like(parameter)
    parameter.grad.view(-1)[-3] = 1.0
    torch.optim.AdamW([parameter], lr=3.0, weight_decay=0.0, fused=True).step()
    with torch.no_grad():
        got = model(**arguments).last_hidden_state
        layer_by_layer = no_fused(model)(**arguments).last_hidden_state
        out = model.encoder.layers[0].attention.out
        out.forward = lambda x: nn.functional.linear(x, out.weight, out.bias)
        wanted = model(**arguments).last_hidden_state
    torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(layer_by_layer, wanted, rtol=1e-4, atol=1e-4)


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


def pruned(model):
    for layer in model.encoder.layers:
        layer.mlp.down.weight.data = layer.mlp.down.weight.data[:, :24]
        layer.mlp.up.weight.data = layer.mlp.up.weight.data[: 24 * (2 if layer.mlp.gated else 1)]
        if layer.mlp.up.bias is not None:
            layer.mlp.up.bias.data = layer.mlp.up.bias.data[:24]


def turned(model):
    weight = model.encoder.layers[0].attention.out.weight
    weight.data = weight.data.t()


@torch.no_grad()
@pytest.mark.parametrize("change", [pruned, turned])
@pytest.mark.parametrize("family", ["MB", "BE"])
def test_a_view_of_a_weight_in_its_place_is_seen(family, change):
    model, arguments = our_model(family), inputs(family)
    model(**arguments)
    change(model)
    got = model(**arguments).last_hidden_state
    wanted = no_fused(model)(**arguments).last_hidden_state
    reference = our_model(family, backend="reference")
    change(reference)
    torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(got, reference(**arguments).last_hidden_state, rtol=1e-3, atol=1e-3)


@torch.no_grad()
def test_shapes_that_do_not_fit_are_torchs_error():
    model, arguments = our_model("BE"), inputs("BE")
    model(**arguments)
    layer = model.encoder.layers[1]
    layer.attention.out.bias = nn.Parameter(torch.zeros(31))
    with pytest.raises(RuntimeError, match="size"):
        model(**arguments)


@torch.no_grad()
@pytest.mark.parametrize("family", ["MB", "BE"])
def test_one_module_in_training_is_run(family):
    changes = {"attention_dropout": 0.5} if family == "MB" else {"hidden_dropout_prob": 0.5}
    model, arguments = our_model(family, **changes), inputs(family)
    quiet = model(**arguments).last_hidden_state
    model.encoder.layers[1].train()
    assert not torch.equal(model(**arguments).last_hidden_state, quiet)


@torch.no_grad()
def test_a_parametrised_final_norm_is_seen():
    class Double(nn.Module):
        def forward(self, weight):
            return 2 * weight

    model, arguments = our_model("MB"), inputs("MB")
    before = model(**arguments).last_hidden_state
    nn.utils.parametrize.register_parametrization(model.encoder.final_norm, "weight", Double())
    assert not torch.allclose(model(**arguments).last_hidden_state, before)


def test_torchs_newer_precision_setting():
    model, arguments = our_model("MB"), inputs("MB")
    if not hasattr(torch.backends.cuda.matmul, "fp32_precision"):
        pytest.skip("this torch has one setting")
    before = torch.backends.cuda.matmul.fp32_precision
    try:
        torch.backends.cuda.matmul.fp32_precision = "tf32"
        with torch.no_grad():
            model(**arguments)
    finally:
        torch.backends.cuda.matmul.fp32_precision = before


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


def test_gradients_hidden_states_and_training_go_layer_by_layer():
    model, arguments = our_model("MB"), inputs("MB")
    taken = counted(model)
    model(**arguments).last_hidden_state.sum().backward()
    assert model.encoder.layers[0].attention.qkv.weight.grad is not None
    with torch.no_grad():
        assert len(model(**arguments, output_hidden_states=True).hidden_states) == 5
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
    model, other = our_model("MB", **WIDE), our_model("MB", **WIDE)
    batches = [ef.Batch.from_lists([[3 + (i * t) % 90 for t in range(50 + i)]]) for i in range(8)]
    with torch.no_grad():
        model(batches[0])
        # Both threads find the packs of the old numbers.
        for p, q in zip(model.parameters(), other.parameters(), strict=True):
            p.copy_(q.roll(1, 0))
            q.copy_(p)
        wanted = [other(batch).last_hidden_state for batch in batches]
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
