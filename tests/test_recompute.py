"""`model.recompute`: less is kept for the backward, and gradients stay bit for bit the same."""

import copy
import shutil

import pytest
import torch
from closeness import assert_same_bits
from native_harness import Counting
from op_harness import one_thread  # noqa: F401
from test_dropout import drops
from tiny import EVERY_HEAD, FAMILIES, batch_of, inputs, label_changes, our_model, targets

from encoder_fast.kernels import _native

BACKENDS = ("native", "torch", "reference")
each_family = pytest.mark.parametrize("family", FAMILIES)
each_way = pytest.mark.parametrize("recompute", ["mlp", "layer"])


@pytest.fixture(params=BACKENDS)
def backend(request):
    if request.param == "native" and _native.C is None:
        pytest.skip(_native.missing)
    return request.param


def build(family, backend="auto", head="masked_lm", dtype=None, **changes):
    changes = drops(family, p=0.3) | label_changes(head) | changes
    return our_model(family, head, dtype, backend, **changes).train()


def gradients(model, family, head="masked_lm", autocast=False, lengths=(7, 33, 1)) -> dict:
    """The loss and each gradient of one step with a fixed seed."""
    given = inputs(family, lengths)
    torch.manual_seed(3)
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        loss = model(**given, **targets(family, head, given["attention_mask"])).loss
    loss.backward()
    grads = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    return {"loss": loss, "next random number": torch.rand(1), **grads}


def assert_same(model, recompute, *how, **more) -> None:
    """The same step without and with recomputation."""
    again = copy.deepcopy(model)
    again.recompute = recompute
    wanted, ours = gradients(model, *how, **more), gradients(again, *how, **more)
    assert ours.keys() == wanted.keys() and len(ours) > 3
    for name, x in wanted.items():
        assert_same_bits(ours[name], x, name)


@each_way
@each_family
def test_gradients_with_dropout_are_the_same_bits(family, backend, recompute):
    assert_same(build(family, backend), recompute, family)


@each_way
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64], ids=str)
@pytest.mark.parametrize("family", ["MB", "AL"])
def test_other_dtypes(family, dtype, recompute):
    assert_same(build(family, dtype=dtype), recompute, family)


@each_way
@each_family
def test_autocast_is_the_same_in_the_second_forward(family, backend, recompute):
    assert_same(build(family, backend), recompute, family, autocast=True)


@each_way
@pytest.mark.parametrize("family, head", EVERY_HEAD)
def test_every_head(family, head, recompute):
    assert_same(build(family, head=head), recompute, family, head)


@each_way
def test_groups_of_shared_layers(backend, recompute):
    shared = {"num_hidden_layers": 4, "num_hidden_groups": 2}
    assert_same(build("AL", backend, **shared), recompute, "AL")


@each_way
@each_family
@pytest.mark.parametrize(
    "frozen", ["embeddings", "layers.0", "layers.", "attention", "mlp", "bias"]
)
def test_frozen_parameters(family, frozen, recompute):
    model = build(family)
    for name, parameter in model.encoder.named_parameters():
        parameter.requires_grad_(frozen not in name)
    assert_same(model, recompute, family)


def saved(model, family, lengths) -> int:
    """Bytes of the storages that a step keeps for its backward, parameters aside."""
    given = inputs(family, lengths)
    ours = {p.untyped_storage().data_ptr() for p in model.parameters()}
    kept = {}

    def keep(x):
        storage = x.untyped_storage()
        if storage.data_ptr() not in ours:
            kept[storage.data_ptr()] = storage  # alive, so that no other takes its address
        return x

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda x: x):
        model(**given)
    return sum(storage.nbytes() for storage in kept.values())


@each_family
def test_less_is_kept(family, backend):
    """Of two more layers, so that what the other parts of a model keep does not count."""
    lengths, T = (33, 20, 40), 93
    shape = {"hidden_size": 64, "num_attention_heads": 2, "intermediate_size": 256}
    per_layer = {}
    for recompute in (None, "mlp", "layer"):
        kept = []
        for layers in (4, 6):
            model = build(family, backend, None, num_hidden_layers=layers, **shape)
            model.recompute = recompute
            kept.append(saved(model, family, lengths))
        per_layer[recompute] = (kept[1] - kept[0]) / 2 / T
    print(per_layer)
    inner = 4 * 256 * (2 if family == "MB" else 1)
    assert per_layer["mlp"] <= per_layer[None] - inner
    # The input of a layer: of pre-norm ones the sum, and its norm.
    assert per_layer["layer"] <= 4 * 64 * (2 if family == "MB" else 1) + 8


@pytest.mark.skipif(_native.C is None, reason=str(_native.missing))
@each_way
@each_family
def test_packs_of_weights_serve_both_forwards(family, recompute, monkeypatch):
    """They are made once, and filled anew after a step."""
    model = build(family, "native")
    model.recompute = recompute
    optimiser = torch.optim.AdamW(model.parameters())
    counting = Counting(_native.C)
    monkeypatch.setattr(_native, "C", counting)
    gradients(model, family)
    assert counting.calls.pop("pack") > 0
    for _ in range(2):
        optimiser.step()
        gradients(model, family)
    assert "pack" not in counting.calls


def test_a_weight_that_is_changed_before_its_backward_is_torchs_error():
    model = our_model("MB", "masked_lm")
    given = inputs("MB")
    loss = model(**given, **targets("MB", "masked_lm", given["attention_mask"])).loss
    with torch.no_grad():
        model.encoder.layers[0].mlp.down.weight.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_a_wrong_value_is_named():
    model = our_model("BE")
    with pytest.raises(ValueError, match=r"recompute: got 'all', allowed are \(None, 'mlp', 'l"):
        model.recompute = "all"
    assert model.recompute is None


@torch.no_grad()
@each_way
@each_family
def test_inference_stays_as_it_is(family, backend, recompute):
    model, given = our_model(family, backend=backend), inputs(family)
    wanted = model(**given).last_hidden_state
    model.recompute = recompute
    assert_same_bits(model(**given).last_hidden_state, wanted)
    model.train()
    model(**given)
    model.recompute = None
    assert_same_bits(model.eval()(**given).last_hidden_state, wanted)


@each_way
@pytest.mark.parametrize(
    "compiler",
    [
        "aot_eager",
        pytest.param(
            "inductor",
            marks=pytest.mark.skipif(shutil.which("g++") is None, reason="a C++ compiler needed"),
        ),
    ],
)
@pytest.mark.parametrize("family", ["MB", "AL"])
def test_a_compiled_model_drops_what_its_forward_dropped(family, compiler, recompute):
    """Without recomputation the graph keeps the masks; the same seed must give the same step."""
    given = inputs(family, (7, 33))
    batch = batch_of(given)
    results = []
    for value in (None, recompute):
        torch._dynamo.reset()
        model = build(family, head=None)
        model.recompute = value
        compiled = torch.compile(model, fullgraph=True, backend=compiler)
        torch.manual_seed(3)
        x_TW = compiled(batch).last_hidden_state
        x_TW.backward(torch.linspace(-1, 1, x_TW.numel()).view(x_TW.shape))
        results.append([x_TW.detach(), *(p.grad for p in model.parameters() if p.grad is not None)])
    for a, b in zip(*results, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4 * float(b.abs().max()) + 1e-7)
