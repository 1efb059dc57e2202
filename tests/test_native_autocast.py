"""Under torch.autocast to bf16 the native engine runs every op, with the dtypes of the torch
backend and as good numbers.
"""

import pytest
import torch
from closeness import assert_as_good_as, assert_same_bits, ulps
from native_harness import Counting, needs_engine
from op_cases import CASES
from test_native_encoder import WIDE, counted, each_family
from test_ops import TABLES, as_tuple, copy_of, cotangents_like, gradients, run
from tiny import exact, inputs, our_model, real_rows, targets
from torch import Tensor

from encoder_fast.kernels import _native, _native_weights

pytestmark = needs_engine

ACTIVATIONS = ("x_TW", "x_NW", "residual_TW", "qkv_T3HD")
FORMS = {
    "fp32": (),
    "bf16": ACTIVATIONS,
    "bf16-onto-fp32": ("x_TW",),
}
"""Which arguments are in bf16: parameters stay in fp32."""
FORMS_OF = {"add_norm": tuple(FORMS), "embed": ("fp32",), "attention": ("bf16",)}
EVERY_CASE = [
    pytest.param(op, case, form, id=f"{op}-{case}-{form}")
    for op, cases in CASES.items()
    for case in cases
    for form in FORMS_OF.get(op, ("fp32", "bf16"))
]
bf16 = torch.bfloat16


def autocast(dtype=bf16, enabled=True):
    return torch.autocast("cpu", dtype, enabled=enabled)


def in_form(arguments: dict, form: str) -> dict:
    """The arguments as leaves, some of them rounded to bf16."""
    return {
        name: x.detach().to(bf16).requires_grad_(x.requires_grad)
        if name in FORMS[form] and isinstance(x, Tensor)
        else x
        for name, x in arguments.items()
    }


@pytest.mark.parametrize("op, case, form", EVERY_CASE)
def test_each_op_has_the_dtypes_of_torch_and_its_accuracy(op, case, form):
    arguments = in_form(case.make(torch.float32), form)
    plain_arguments, exact_arguments = copy_of(arguments), copy_of(arguments, torch.float64)
    with autocast():
        ours = as_tuple(run(TABLES[op]["native"], arguments))
        plain = as_tuple(run(TABLES[op]["torch"], plain_arguments))
        with torch.no_grad():
            inference = as_tuple(run(TABLES[op]["native"], arguments))
    specified = as_tuple(run(TABLES[op]["reference"], exact_arguments))
    # A bf16 product has rounded the scores of a loss in fp32.
    floor = ulps(bf16, specified[0]) if op == "linear_cross_entropy" else None
    # The log-sum-exp of attention is of rounded queries and keys, on either backend.
    used = [0] if op == "attention" else range(len(ours))
    for i in used:
        assert_as_good_as(ours[i], plain[i], specified[i], 2.0, floor, f"result {i}")
        assert_as_good_as(inference[i], plain[i], specified[i], 2.0, floor, f"inference {i}")
    cotangents = cotangents_like([ours[i] for i in used])
    our_grads = gradients([ours[i] for i in used], arguments, cotangents)
    plain_grads = gradients([plain[i] for i in used], plain_arguments, cotangents)
    exact_grads = gradients([specified[i] for i in used], exact_arguments, cotangents)
    largest = max((g.abs().max().item() for g in exact_grads.values() if g.numel()), default=0.0)
    for name, grad in exact_grads.items():
        floor = ulps(bf16, largest) if op == "attention" else None
        assert_as_good_as(our_grads[name], plain_grads[name], grad, 3.0, floor, f"d {name}")


@pytest.fixture
def calls(monkeypatch):
    """Name -> how often it was called. The torch forms of the products are errors."""
    counting = Counting(_native.C)
    monkeypatch.setattr(_native, "C", counting)

    def refused(*_, **__):
        raise AssertionError("torch multiplied")

    monkeypatch.setattr(torch.nn.functional, "linear", refused)
    monkeypatch.setattr(torch.nn.functional, "layer_norm", refused)
    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", refused)
    return counting.calls


def loss_of(model, family, head):
    given = inputs(family)
    return model(**given, **targets(family, head, given["attention_mask"]))


@each_family
def test_training_runs_on_the_engine_and_packs_each_weight_once(family, calls):
    model = our_model(family, "masked_lm")
    for step in range(2):
        calls.clear()
        with autocast():
            out = loss_of(model, family, "masked_lm")
        assert out.loss.dtype == torch.float32
        out.loss.backward()
        used = {"linear", "mlp_forward", "mlp_backward", "gradient_of_weight", "add_norm"}
        used |= {"add_norm_backward", "Attention", "scores_of_words", "gradients_of_words"}
        used |= {"gather_backward"} | ({"rope"} if family == "MB" else set())
        assert used <= calls.keys(), used - calls.keys()
        assert ("pack" in calls) == (step == 0), calls
    assert all(p.grad.dtype == torch.float32 for p in model.parameters() if p.grad is not None)


@torch.no_grad()
@each_family
def test_pooling_runs_on_the_engine(family, calls):
    with autocast():
        vectors = our_model(family, "embedding")(**inputs(family)).embeddings
    assert vectors.dtype == torch.float32 and calls["pool"] == 1


def everything(out) -> dict[str, Tensor]:
    names = ("loss", "logits", "last_hidden_state", "pooler_output", "pair_logits")
    return {name: getattr(out, name) for name in names if getattr(out, name) is not None}


@pytest.mark.parametrize("head", [None, "masked_lm", "sequence_classification"])
@each_family
def test_models_have_the_dtypes_of_torch_and_its_accuracy(family, head):
    changes = {"num_labels": 3} if head == "sequence_classification" else {}
    results = {}
    for name, backend, dtype in (
        ("ours", "native", torch.float32),
        ("plain", "torch", torch.float32),
        ("exact", "reference", torch.float64),
    ):
        model = our_model(family, head, dtype, backend, **changes)
        with autocast(enabled=name != "exact"):
            out = everything(loss_of(model, family, head))
        seeded = torch.Generator().manual_seed(1)
        loss = out.get("loss", out["last_hidden_state"])
        loss.backward(
            torch.randn(loss.shape, generator=seeded).to(loss.dtype) if loss.ndim else None
        )
        grads = {n: p.grad for n, p in model.named_parameters() if p.grad is not None}
        results[name] = out, grads
    (ours, our_grads), (plain, plain_grads), (exact, exact_grads) = results.values()
    for name in plain:
        # A bf16 product has rounded what an fp32 loss is made of.
        floor = ulps(bf16, exact[name]) if name == "loss" else None
        assert_as_good_as(ours[name], plain[name], exact[name], 3.0, floor, name)
    for name, grad in exact_grads.items():
        # Sums of bf16 numbers, as those of a model in bf16.
        floor = ulps(bf16, grad)
        assert_as_good_as(our_grads[name], plain_grads[name], grad, 3.0, floor, name)


@torch.no_grad()
@pytest.mark.parametrize("changes", [{}, WIDE], ids=["narrow", "wide"])
@each_family
def test_inference_is_one_call(family, changes):
    given = inputs(family)
    model, torch_model = (our_model(family, backend=b, **changes) for b in ("native", "torch"))
    taken = counted(model)
    with autocast():
        ours = model(**given).last_hidden_state
        plain = torch_model(**given).last_hidden_state
    assert taken == [1]
    mask = given["attention_mask"]
    oracle = exact(family, **changes)(**given).last_hidden_state
    assert_as_good_as(*(real_rows(x, mask) for x in (ours, plain, oracle)), factor=3.0)


@torch.no_grad()
@each_family
def test_autocast_comes_and_goes(family):
    model, given = our_model(family), inputs(family)
    before = model(**given).last_hidden_state
    with autocast():
        first = model(**given).last_hidden_state
        with autocast(enabled=False):
            assert_same_bits(model(**given).last_hidden_state, before, "switched off inside")
        assert_same_bits(model(**given).last_hidden_state, first, "again")
    assert_same_bits(model(**given).last_hidden_state, before, "after")
    assert not torch.equal(first.to(before.dtype), before)


@pytest.mark.parametrize("family", ["MB", "AL"])
def test_the_backward_may_run_inside_or_outside(family):
    grads = []
    for inside in (True, False):
        model = our_model(family, "masked_lm")
        with autocast():
            loss = loss_of(model, family, "masked_lm").loss
            if inside:
                loss.backward()
        if not inside:
            loss.backward()
        grads.append([p.grad for p in model.parameters() if p.grad is not None])
    for a, b in zip(*grads, strict=True):
        assert_same_bits(a, b)


@torch.no_grad()
def test_a_model_in_bf16_computes_the_same_under_autocast():
    model, given = our_model("MB", dtype=bf16), inputs("MB")
    wanted = model(**given).last_hidden_state
    with autocast():
        assert_same_bits(model(**given).last_hidden_state, wanted)


@torch.no_grad()
@each_family
def test_autocast_to_float16_is_left_to_torch(family, monkeypatch):
    given = inputs(family)
    wanted = our_model(family, backend="torch")
    ours = our_model(family, backend="native")
    counting = Counting(_native.C)
    monkeypatch.setattr(_native, "C", counting)
    with autocast(torch.float16):
        assert_same_bits(ours(**given).last_hidden_state, wanted(**given).last_hidden_state)
    assert not counting.calls


def losses_of(family, backend, steps=8) -> list[float]:
    model = our_model(family, "masked_lm", backend=backend).train()
    optimiser = torch.optim.AdamW(model.parameters(), lr=3e-3)
    losses = []
    for _ in range(steps):
        optimiser.zero_grad()
        with autocast():
            loss = loss_of(model, family, "masked_lm").loss
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    return losses


@each_family
def test_training_steps_follow_those_of_the_torch_backend(family):
    ours, plain = losses_of(family, "native"), losses_of(family, "torch")
    assert ours[-1] < 0.9 * ours[0]
    assert ours == pytest.approx(plain, rel=0.02)


def test_a_weight_is_packed_from_its_fp32_numbers():
    weight, x = torch.nn.Parameter(torch.randn(24, 16)), torch.randn(5, 16)
    with torch.no_grad():
        plain = TABLES["linear"]["native"].run(x, weight, None)
        with autocast():
            TABLES["linear"]["native"].run(x, weight, None)
        assert len(_native_weights._PACKS[weight]) == 2
        assert_same_bits(TABLES["linear"]["native"].run(x, weight, None), plain)
