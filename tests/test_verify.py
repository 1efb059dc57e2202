"""`verify` passes on right backends and fails on each of the faults that it is there to find."""

import argparse
import json
import types

import pytest
import tiny
import torch
from tiny import one_thread  # noqa: F401

from encoder_fast import batch, cli, encoder, verify, verify_checks, verify_transformers
from encoder_fast.kernels import _grouped, attention, rope
from encoder_fast.kernels.dispatch import BACKENDS, Implementation

HERE = [name for name in BACKENDS if name != "triton"]
"""Triton's interpreter would take minutes for each of these runs."""


def report(folder, capsys, *options, dtype="float32") -> tuple[int, dict]:
    """Exit status and JSON of one run."""
    parser = argparse.ArgumentParser()
    verify.add_arguments(parser)
    named = () if "--backend" in options else ("--backend", *HERE)
    words = [str(folder), "--json", "--dtype", dtype, *named, *options]
    status = verify.run(parser.parse_args(words))
    return status, json.loads(capsys.readouterr().out)


def failures(found: dict, backend: str | None = None) -> set[str]:
    rows = found["results"]
    return {r["check"] for r in rows if not r["ok"] and backend in (None, r["backend"])}


@pytest.mark.parametrize("family", tiny.EVERY_TYPE)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_right_backends_pass(family, dtype, capsys):
    status, found = report(tiny.saved(family), capsys, dtype=dtype)
    assert (status, failures(found), found["ok"]) == (0, set(), True)
    rows = found["results"]
    assert {r["backend"] for r in rows} == set(HERE)
    assert {r["dtype"] for r in rows} == {dtype}
    checks = {r["check"] for r in rows}
    expected = {"lengths alone", "padding left", "holes", "isolation", "gradient", "transformers"}
    assert expected <= checks
    assert ("token types" in checks) == (family in ("BE", "AL", "EL"))
    # Some error is there wherever something was computed: an all-zero table would check nothing.
    assert all(r["error"] > 0 for r in rows if r["check"] in ("padding right", "gradient"))


def test_the_real_model_passes(minilm_folder, capsys, monkeypatch):
    torch.set_num_threads(2)
    monkeypatch.setattr(verify_transformers, "missing", lambda: "transformers is not here")
    words = ["verify", str(minilm_folder), "--dtype", "float32", "--backend", *HERE]
    assert cli.main(words) == 0
    out = capsys.readouterr().out
    assert f"all {15 * len(HERE)} checks hold" in out
    assert "not checked: transformers is not here" in out
    assert "FAIL" not in out


def plant(monkeypatch, **changes):
    """Replace the torch backend's attention."""
    real = attention.IMPLEMENTATIONS["torch"]
    run, prepare = changes.get("run", real.run), changes.get("prepare", real.prepare)
    monkeypatch.setitem(attention.IMPLEMENTATIONS, "torch", Implementation(run, prepare=prepare))


@pytest.mark.parametrize("step", [-1, 1])
def test_a_window_off_by_one_is_found(step, monkeypatch, capsys):
    real = _grouped.visible
    wrong = lambda q, k, half: real(q, k, half and half + step)  # noqa: E731
    monkeypatch.setattr(_grouped, "visible", wrong)
    status, found = report(tiny.saved("MB"), capsys)
    assert status == 1 and not found["ok"]
    assert {"lengths alone", "packed", "gradient", "transformers"} <= failures(found, "torch")
    assert not failures(found, "reference")


def test_dropped_isolation_is_found(monkeypatch, capsys):
    class Merged:
        """All sequences as if they were one."""

        def __init__(self, layout):
            self.columns_T = layout.columns_T
            self.lengths = (sum(layout.lengths),)
            self.spans = self.lengths

    plant(monkeypatch, prepare=lambda layout, *rest: attention.prepare(Merged(layout), *rest))
    status, found = report(tiny.saved("BE"), capsys)
    assert status == 1
    assert {"isolation", "packed", "padding right", "gradient"} <= failures(found, "torch")
    assert "lengths alone" not in failures(found)


@pytest.mark.parametrize("place", ["backend", "encoder"])
def test_a_wrong_rope_base_is_found(place, monkeypatch, capsys):
    if place == "backend":
        real = rope.IMPLEMENTATIONS["torch"].run

        def run(qkv_T3HD, cos_TK, sin_TK):
            turned = torch.atan2(sin_TK, cos_TK) * 0.999
            return real(qkv_T3HD, turned.cos(), turned.sin())

        monkeypatch.setitem(rope.IMPLEMENTATIONS, "torch", Implementation(run))
    else:
        # Shared by every backend, the reference included: only transformers can tell.
        tables = encoder.rope_tables
        monkeypatch.setattr(encoder, "rope_tables", lambda at, theta, D: tables(at, 10000.0, D))
    status, found = report(tiny.saved("MB"), capsys)
    assert status == 1
    expected = {"lengths alone", "transformers"} if place == "backend" else {"transformers"}
    assert expected <= failures(found, "torch")
    assert bool(failures(found, "reference")) == (place == "encoder")


@pytest.mark.parametrize("family", tiny.FAMILIES)
def test_positions_renumbered_at_holes_are_found(family, monkeypatch, capsys):
    """Counted over the real tokens only, as if the text had been packed without its holes."""
    real = batch.Batch.from_padded.__func__

    def renumbered(cls, *args, **kwargs):
        made = real(cls, *args, **kwargs)
        starts = torch.repeat_interleave(made.cu_seqlens[:-1].long(), made.lengths_B)
        index_T = torch.arange(made.T) - starts
        if family == "RO":
            given = {"explicit_positions_T": index_T + tiny.PAD["RO"] + 1}
        else:
            given = {"columns_T": index_T, "spans": made.lengths}
        object.__setattr__(made, "padded_rows_T", made.padded_rows_T)
        for name, value in given.items():
            object.__setattr__(made, name, value)
        return made

    monkeypatch.setattr(batch.Batch, "from_padded", classmethod(renumbered))
    status, found = report(tiny.saved(family), capsys)
    assert status == 1
    assert "holes" in failures(found, "torch") and "holes" in failures(found, "reference")
    assert not {"packed", "padding right"} & failures(found)


def test_a_wrong_gradient_is_found(monkeypatch, capsys):
    class Half(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, grad):
            return grad * 0.99

    real = attention.IMPLEMENTATIONS["torch"].run
    plant(monkeypatch, run=lambda qkv, *rest: real(Half.apply(qkv), *rest))
    status, found = report(tiny.saved("EL"), capsys)
    assert (status, failures(found)) == (1, {"gradient"})


def test_not_a_number_fails_and_stays_json(monkeypatch, capsys):
    real = attention.IMPLEMENTATIONS["torch"].run

    def run(qkv, *rest):
        o, lse = real(qkv, *rest)
        return o * float("nan"), lse

    plant(monkeypatch, run=run)
    status, found = report(tiny.saved("BE"), capsys, "--backend", "torch")
    assert status == 1
    assert next(r for r in found["results"] if r["check"] == "packed")["error"] is None


def test_default_dtypes_and_a_refusing_backend(monkeypatch, capsys):
    """The checkpoint's own, float32 and bfloat16; a backend that refuses leaves its reason."""
    refuses = Implementation(
        attention.torch_attention,
        why_not=lambda request: "no bf16" if request.dtype == torch.bfloat16 else None,
        prepare=attention.prepare,
    )
    monkeypatch.setitem(attention.IMPLEMENTATIONS, "torch", refuses)
    results, notes = verify.verify(tiny.saved("BE"))
    assert [r.backend for r in results if r.dtype == "bfloat16"].count("torch") == 0
    assert {r.dtype for r in results} == {"float32", "bfloat16"}
    assert any("torch, bfloat16" in note and "no bf16" in note for note in notes)


@pytest.mark.parametrize(
    "words", [["--dtype", "int8"], ["--backend", "cudnn"], ["--colour"]], ids=lambda w: w[-1]
)
def test_bad_usage_is_status_2(words, capsys):
    with pytest.raises(SystemExit) as caught:
        cli.main(["verify", str(tiny.saved("BE")), *words])
    assert caught.value.code == 2


def test_a_folder_that_is_no_model_is_status_2(tmp_path, capsys):
    assert cli.main(["verify", str(tmp_path)]) == 2
    assert "config.json" in capsys.readouterr().err


def test_not_a_number_is_not_the_same_bits():
    zero, bad = torch.zeros(2), torch.tensor([0.0, float("nan")])
    seen = []
    checks = types.SimpleNamespace(result=lambda check, error, *rest: seen.append(error))
    verify_checks.Checks.same_bits(checks, "bits", [zero, bad, zero], [zero, zero, zero])
    assert seen[0] != seen[0]
