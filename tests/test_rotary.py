"""Rotary angles that no cast can round, and state that no call leaves behind."""

import copy
import pickle
import threading

import pytest
import torch
from closeness import assert_same_bits, rows_that_differ
from tiny import (
    FAMILIES,
    PAD,
    ids,
    inputs,
    one_thread,  # noqa: F401
    our_model,
    saved,
)

import encoder_fast as ef
from encoder_fast.kernels.rope import rope_tables

each_family = pytest.mark.parametrize("family", FAMILIES)


@pytest.fixture(autouse=True)
def no_grad():
    with torch.no_grad():
        yield


def phase_error(cos, sin, position, theta, head_width):
    exact = position * theta ** -(torch.arange(0, head_width, 2, dtype=torch.float64) / head_width)
    angle = torch.atan2(sin.double(), cos.double())
    return (torch.remainder(angle - exact + torch.pi, 2 * torch.pi) - torch.pi).abs().max().item()


@pytest.mark.parametrize("theta", [10_000.0, 160_000.0])
@pytest.mark.parametrize("position", [511, 8191])
def test_C31_rotary_angles(position, theta):
    cos, sin = rope_tables(torch.tensor([position]), theta, 64)
    assert cos.dtype == sin.dtype == torch.float32
    assert phase_error(cos[0], sin[0], position, theta, 64) <= 1e-3


def fresh(dtype=None):
    """On `torch`: a model built on no device cannot have the backend of its later device."""
    return our_model("MB", dtype=dtype, backend="torch")


def with_rounded_weights():
    """A fresh ModernBERT whose weights are bfloat16 numbers kept in fp32."""
    model = fresh()
    for p in model.parameters():
        p.copy_(p.bfloat16().float())
    return model


def built_on_meta():
    with torch.device("meta"):
        model = ef.from_config(fresh().config.hf, device="meta", backend="torch")
    model = model.to_empty(device="cpu")
    model.load_state_dict(with_rounded_weights().state_dict())
    return model


def refilled_from_config():
    model = ef.from_config(fresh().config.hf, backend="torch")
    model.load_state_dict(with_rounded_weights().state_dict())
    return model


JOURNEYS = {
    "to_bf16_and_back": lambda: fresh().bfloat16().float(),
    "half_after_rounding": lambda: with_rounded_weights().bfloat16().to(torch.float32),
    "load_as_bf16_then_float": lambda: fresh("bfloat16").float(),
    "deepcopy": lambda: copy.deepcopy(with_rounded_weights()),
    "pickle": lambda: pickle.loads(pickle.dumps(with_rounded_weights())),
    "meta_then_load": built_on_meta,
    "from_config_then_load": refilled_from_config,
}


@pytest.mark.parametrize("journey", JOURNEYS.values(), ids=JOURNEYS)
def test_C31_no_cast_copy_or_meta_device_touches_the_rotary_angles(journey):
    ids_BS = ids(1, 512)
    assert_same_bits(
        journey()(ids_BS).last_hidden_state, with_rounded_weights()(ids_BS).last_hidden_state
    )


@each_family
def test_C31_state_dict_holds_parameters_only(family):
    model = our_model(family)
    assert list(model.state_dict()) == [name for name, _ in model.named_parameters()]
    assert list(model.buffers()) == []


@each_family
def test_C32_inference_mode_then_training_then_longer_then_double(family):
    model = our_model(family)
    with torch.inference_mode():
        model(ids(1, 16))
    with torch.enable_grad():
        for length in (16, 40):
            out = model.train()(ids(1, length)).last_hidden_state
            out.sum().backward()
            assert_same_bits(out.detach(), our_model(family)(ids(1, length)).last_hidden_state)
    double = model.double()(ids(1, 40)).last_hidden_state
    assert_same_bits(double, our_model(family, dtype=torch.float64)(ids(1, 40)).last_hidden_state)


@each_family
def test_C32_a_copy_on_another_device_does_not_disturb_the_model(family):
    model = our_model(family)
    expected = model(ids(1, 16)).last_hidden_state
    away = copy.deepcopy(model).to("meta")
    assert away.device.type == "meta"
    with pytest.raises(ValueError, match=r"device cpu.*meta"):
        away(ids(1, 16))
    assert_same_bits(model(ids(1, 16)).last_hidden_state, expected)


@each_family
def test_C32_threads_of_different_lengths(family):
    model, lengths = our_model(family), (5, 40, 17, 33)
    expected = [model(ids(2, n)).last_hidden_state for n in lengths]
    results, wrong = {}, []

    def work(i):
        with torch.no_grad():
            for _ in range(5):
                results[i] = model(ids(2, lengths[i])).last_hidden_state
                if rows_that_differ(results[i], expected[i]):
                    wrong.append(i)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(len(lengths))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == len(lengths) and not wrong


@each_family
def test_two_models_in_one_process_keep_apart(family):
    a = our_model(family)
    b = ef.load(saved(family), dtype=torch.float64)
    given = inputs(family)
    first = a(**given).last_hidden_state
    b(**given)
    assert_same_bits(a(**given).last_hidden_state, first)
    assert PAD[family] == a.config.pad_token_id
