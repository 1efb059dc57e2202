"""The packed bf16 path: never stale, never without a gradient, equal to `F.linear`."""

import copy

import pytest
import torch
import torch.nn.functional as F
from closeness import assert_as_good_as
from tiny import hf_config

import encoder_fast as ef
from encoder_fast.kernels import _onednn, linear, mlp

bf16 = torch.bfloat16
pytestmark = pytest.mark.skipif(not _onednn.SUPPORTED, reason="no bf16 arithmetic in oneDNN here")
RUN = linear.IMPLEMENTATIONS["torch"].run


def draw(*shape):
    return torch.randn(*shape).to(bf16)


def good(ours, x, weight, bias):
    oracle = F.linear(x.double(), weight.double(), None if bias is None else bias.double())
    assert_as_good_as(ours, F.linear(x, weight, bias), oracle)


X_LAYOUTS = {
    "contiguous": lambda: draw(7, 48),
    "one row": lambda: draw(1, 48),
    "every other row": lambda: draw(14, 48)[::2],
    "every other column": lambda: draw(7, 96)[:, ::2],
    "transposed": lambda: draw(48, 7).t(),
    "one row repeated": lambda: draw(1, 48).expand(7, 48),
}
BIASES = {
    "none": lambda: None,
    "contiguous": lambda: draw(32),
    "strided": lambda: draw(64)[::2],
    "expanded": lambda: draw(1).expand(32),
}


@pytest.mark.parametrize("bias", BIASES)
@pytest.mark.parametrize("layout", X_LAYOUTS)
def test_linear_is_right_for_every_layout(layout, bias):
    x, weight, bias = X_LAYOUTS[layout](), draw(32, 48), BIASES[bias]()
    with torch.inference_mode():
        good(RUN(x, weight, bias), x, weight, bias)


@pytest.mark.parametrize("how", ["no_grad add_", "data mul_", "data copy_", "data swap", "view"])
def test_C50_a_changed_weight_is_packed_anew(how):
    x, weight = draw(5, 48), torch.nn.Parameter(draw(32, 48))
    with torch.inference_mode():
        RUN(x, weight, None)
    with torch.no_grad():
        if how == "no_grad add_":
            weight.add_(1)
        elif how == "data mul_":
            weight.data.mul_(3)
        elif how == "data copy_":
            weight.data.copy_(draw(32, 48))
        elif how == "data swap":
            weight.data = draw(32, 48)
        else:
            weight.view(-1)[::3] *= 2
    with torch.inference_mode():
        good(RUN(x, weight, None), x, weight, None)


def test_a_new_weight_at_an_old_address_is_packed_anew():
    x, weight = draw(5, 48), torch.nn.Parameter(draw(32, 48))
    for _ in range(50):
        weight.data = torch.empty(0, dtype=bf16)
        weight.data = draw(32, 48)
        with torch.inference_mode():
            good(RUN(x, weight, None), x, weight, None)


def test_optimiser_step_in_bf16_is_seen():
    model = ef.from_config(hf_config("BE").to_dict(), dtype=bf16)
    batch = ef.Batch.from_lists([[5, 6, 7], [8, 9]])
    with torch.inference_mode():
        before = model(batch).last_hidden_state
    optimiser = torch.optim.AdamW(model.parameters(), lr=0.05)
    model(batch).last_hidden_state.float().square().mul(torch.arange(32)).sum().backward()
    optimiser.step()
    twin = copy.deepcopy(model)
    with torch.inference_mode():
        after = model(batch).last_hidden_state
        fresh = twin(batch).last_hidden_state
    assert not torch.equal(before, after)
    assert torch.equal(after, fresh)


def test_only_biases_trainable_gives_every_bias_its_gradient():
    model = ef.from_config(hf_config("BE").to_dict(), dtype=bf16).train()
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name.endswith("bias"))
    out = model(ef.Batch.from_lists([[5, 6, 7], [8, 9]]))
    (out.last_hidden_state.float() * torch.randn(5, 32)).sum().backward()
    trained = {n: p.grad for n, p in model.named_parameters() if p.requires_grad}
    without = [n for n, g in trained.items() if g is None and not n.startswith("encoder.pooler")]
    assert len(trained) > 10
    assert without == []


@pytest.mark.parametrize("gated", [False, True])
def test_inference_tensors_take_the_plain_path(gated):
    with torch.inference_mode():
        up, down = draw(48 if gated else 24, 32), draw(32, 24)
        x = draw(3, 32)
        ours = mlp.IMPLEMENTATIONS["torch"].run(x, up, None, down, None, "gelu", gated)
        plain = mlp.reference(x, up, None, down, None, "gelu", gated)
        oracle = mlp.reference(x.double(), up.double(), None, down.double(), None, "gelu", gated)
    assert not _onednn.usable(x, (up,), ())
    # `reference` in bf16 rounds once, at the end; the plain path rounds the inner activation too.
    assert_as_good_as(ours, plain, oracle, factor=3.0)


def test_a_model_loaded_under_inference_mode_can_be_trained_and_packed():
    with torch.inference_mode():
        model = ef.from_config(hf_config("BE").to_dict(), dtype=bf16)
        weight = model.encoder.layers[0].attention.qkv.weight
        assert _onednn.usable(draw(3, 32), (weight,), ())
    model(ef.Batch.from_lists([[5, 6]])).last_hidden_state.float().std().backward()
    assert weight.grad is not None


def test_pack_lives_as_long_as_its_weight():
    weight = torch.nn.Parameter(draw(32, 48))
    with torch.inference_mode():
        RUN(draw(2, 48), weight, None)
    assert weight in _onednn._PACKED
    count = len(_onednn._PACKED)
    del weight
    assert len(_onednn._PACKED) == count - 1


@pytest.mark.parametrize("shape", [(768, 768), (2304, 768), (96, 64), (30, 7)], ids=str)
def test_C50_all_but_one_column_written_through_data_is_seen(shape):
    x, weight = draw(5, shape[1]), torch.nn.Parameter(draw(*shape))
    for columns in (slice(1, None), slice(None, -1)):
        with torch.inference_mode():
            RUN(x, weight, None)
        weight.data[:, columns] *= 2
        with torch.inference_mode():
            good(RUN(x, weight, None), x, weight, None)


def test_forward_mode_gradients_take_the_plain_path():
    x, weight, tangent = draw(5, 48), draw(32, 48), draw(5, 48)
    _, ours = torch.func.jvp(lambda x: RUN(x, weight, None), (x,), (tangent,))
    good(ours, tangent, weight, None)
