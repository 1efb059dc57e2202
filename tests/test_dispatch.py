"""Choosing backends: once, with reasons, and never a silent fallback from an explicit choice."""

import pytest
import torch

import encoder_fast as ef
from encoder_fast.kernels import dispatch
from encoder_fast.kernels.dispatch import BackendError, Implementation, Request

REQUEST = Request(torch.device("cpu"), torch.float32, 8, 32)
OPS = tuple(dispatch.op_tables())
TINY = {
    "model_type": "bert",
    "architectures": ["BertModel"],
    "vocab_size": 97,
    "hidden_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "hidden_act": "gelu",
    "max_position_embeddings": 42,
    "type_vocab_size": 2,
    "layer_norm_eps": 1e-12,
    "pad_token_id": 0,
}


def only_64(request: Request) -> str | None:
    return None if request.head_width == 64 else f"head width {request.head_width} is not 64"


@pytest.fixture
def picky(monkeypatch):
    """A first backend that has no pool and whose attention refuses head widths but 64."""
    monkeypatch.setattr(dispatch, "BACKENDS", ("picky", *dispatch.BACKENDS))
    for op, table in dispatch.op_tables().items():
        if op != "pool":
            why_not = only_64 if op == "attention" else dispatch.serves_always
            picky = Implementation(table["torch"].run, why_not, table["torch"].prepare)
            monkeypatch.setitem(table, "picky", picky)


def test_auto_takes_the_first_backend_that_serves():
    ops = dispatch.resolve("auto", REQUEST)
    for op, chosen in ops.chosen.items():
        # Triton's interpreter serves a CPU too, but only by name.
        before = set(dispatch.BACKENDS[: dispatch.BACKENDS.index(chosen)]) - {"triton"}
        assert all(dispatch.why_not(op, name, REQUEST) for name in before)
        ran = getattr(ops, op)
        ran = ran.attention if isinstance(ran, dispatch.AfterRope) else ran
        assert ran is dispatch.op_tables()[op][chosen].run
    assert ops.chosen.keys() == set(OPS)
    assert ops.request == REQUEST


@pytest.mark.parametrize("backend", ["torch", "reference"])
def test_explicit_backend_runs_every_op(backend):
    ops = dispatch.resolve(backend, REQUEST)
    assert ops.chosen == dict.fromkeys(OPS, backend)
    table = dispatch.op_tables()["attention"][backend]
    assert ops.prepare_attention is table.prepare


@pytest.mark.parametrize("name", ["cudnn", "", "Torch"])
def test_unknown_backend_is_named_with_what_is_allowed(name):
    with pytest.raises(
        BackendError, match=rf"backend: got '{name}', allowed are .*'auto'.*'torch'"
    ):
        dispatch.resolve(name, REQUEST)


def test_explicit_backend_that_refuses_lists_each_reason(picky):
    with pytest.raises(BackendError) as caught:
        dispatch.resolve("picky", REQUEST)
    text = str(caught.value)
    assert "attention on picky: head width 8 is not 64" in text
    assert "pool on picky: backend 'picky' has no pool" in text
    assert all(f"{op} on" not in text for op in OPS if op not in ("attention", "pool"))


def test_auto_falls_through_op_by_op(picky):
    chosen = dispatch.resolve("auto", REQUEST).chosen
    assert [op for op, name in chosen.items() if name != "picky"] == ["attention", "pool"]
    wide = Request(torch.device("cpu"), torch.float32, 64, 768)
    chosen = dispatch.resolve("auto", wide).chosen
    assert [op for op, name in chosen.items() if name != "picky"] == ["pool"]


def test_auto_lists_the_reasons_of_all_backends_when_none_serves(monkeypatch):
    for name, implementation in dict(dispatch.op_tables()["rope"]).items():
        refusal = Implementation(implementation.run, lambda request, n=name: f"{n} is closed")
        monkeypatch.setitem(dispatch.op_tables()["rope"], name, refusal)
    with pytest.raises(BackendError) as caught:
        dispatch.resolve("auto", REQUEST)
    for name in dispatch.op_tables()["rope"]:
        if name in dispatch.BACKENDS and name != "triton":
            assert f"rope on {name}: {name} is closed" in str(caught.value)


def test_backend_error_is_a_value_error_of_the_package():
    assert issubclass(BackendError, ValueError)
    assert ef.BackendError is BackendError


def test_C66_report_says_what_runs_and_why_not_the_rest(picky):
    report = ef.backends(ef.from_config(TINY))
    assert report.keys() == set(OPS)
    assert report["attention"]["why_not"]["picky"] == "head width 8 is not 64"
    assert report["pool"]["why_not"]["picky"] == "backend 'picky' has no pool"
    assert report["mlp"]["runs"] == "picky"
    for entry in report.values():
        assert {entry["runs"], *entry["why_not"]} == set(dispatch.BACKENDS)
        assert all(isinstance(reason, str) and reason for reason in entry["why_not"].values())


def test_model_of_an_explicit_backend_reports_it():
    report = ef.backends(ef.from_config(TINY, backend="reference"))
    assert {entry["runs"] for entry in report.values()} == {"reference"}


def test_model_refuses_a_backend_that_cannot_serve_it(picky):
    with pytest.raises(BackendError, match="head width 8 is not 64"):
        ef.from_config(TINY, backend="picky")
