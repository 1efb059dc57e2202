"""Precision, repeatability and memory of whole models."""

import pytest
import torch
from closeness import assert_as_good_as, assert_same_bits
from tiny import (
    EVERY_HEAD,
    FAMILIES,
    exact,
    hf_model,
    ids,
    inputs,
    label_changes,
    one_thread,  # noqa: F401
    our_model,
    real_rows,
    targets,
)
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import encoder_fast as ef

BACKENDS = ("torch", "reference")
each_family = pytest.mark.parametrize("family", FAMILIES)
each_backend = pytest.mark.parametrize("backend", BACKENDS)
HALVES = {"fp16": torch.float16, "bf16": torch.bfloat16}


class Watch(TorchDispatchMode):
    """Records every tensor that an op returns: dtypes, the largest size, and the bytes in all."""

    def __init__(self):
        super().__init__()
        self.dtypes, self.largest, self.largest_op, self.total = set(), 0, "", 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        inputs = {
            x.untyped_storage().data_ptr()
            for x in tree_leaves((args, kwargs))
            if isinstance(x, torch.Tensor)
        }
        for x in tree_leaves(out):
            if not isinstance(x, torch.Tensor):
                continue
            self.dtypes.add(x.dtype)
            if x.untyped_storage().data_ptr() in inputs:
                continue
            self.total += x.untyped_storage().nbytes()
            if x.numel() > self.largest:
                self.largest, self.largest_op = x.numel(), str(func)
        return out


@pytest.mark.parametrize("dtype", HALVES.values(), ids=HALVES)
@each_backend
@pytest.mark.parametrize("family", ("BE", "EL", "AL", "RO"))
def test_C34_constant_rows_in_half_precision(family, backend, dtype):
    """A zero row becomes the bias exactly, whatever the eps of the config; nothing is NaN."""
    width = 16 if family in ("AL", "EL") else 32
    for eps in (1e-12, 1e-5, 1e-7):
        model = our_model(family, dtype=dtype, backend=backend, layer_norm_eps=eps)
        embeddings = model.encoder.embeddings
        with torch.no_grad():
            embeddings.position.weight.zero_()
            embeddings.token_type.weight.zero_()
            vectors = torch.zeros(1, 6, width, dtype=dtype)
            vectors[0, 1] = 3.0
            out = model(inputs_embeds=vectors, output_hidden_states=True)
            bias = embeddings.norm.bias[None, :]
            first = bias if embeddings.project is None else embeddings.project(bias)
        assert (out.hidden_states[0][0, 0] == first[0]).all()
        torch.testing.assert_close(out.hidden_states[0][0, 1], first[0], rtol=0, atol=1e-2)
        assert out.last_hidden_state.isfinite().all()


@each_backend
@each_family
def test_C37_fp32_stays_fp32_inside(family, backend):
    model, given = our_model(family, backend=backend), inputs(family)
    precision = torch.get_float32_matmul_precision()
    with Watch() as watch:
        model(**given).last_hidden_state.sum().backward()
    floating = {d for d in watch.dtypes if d.is_floating_point}
    assert torch.float32 in floating and floating <= {torch.float32, torch.float64}
    assert torch.get_float32_matmul_precision() == precision
    assert {p.grad.dtype for p in model.parameters() if p.grad is not None} == {torch.float32}


@pytest.mark.parametrize("dtype", [*HALVES.values(), torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize(("family", "head"), EVERY_HEAD, ids=[f"{f}-{h}" for f, h in EVERY_HEAD])
def test_C37_outputs_have_the_dtype_of_the_model(family, head, dtype):
    changes = label_changes(head)
    model, given = our_model(family, head, dtype, **changes), inputs(family, (3, 7))
    labels = targets(family, head, given["attention_mask"])
    out = model(**given, **labels, return_logits=True)
    assert model.dtype == out.last_hidden_state.dtype == dtype
    logits = out.logits if out.start_logits is None else out.start_logits
    assert logits.dtype == dtype
    assert out.loss.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    out.loss.backward()
    assert {p.grad.dtype for p in model.parameters() if p.grad is not None} == {dtype}


@pytest.mark.parametrize("dtype", HALVES.values(), ids=HALVES)
@pytest.mark.parametrize(("family", "head"), EVERY_HEAD, ids=[f"{f}-{h}" for f, h in EVERY_HEAD])
def test_C37_logits_in_half_precision_obey_the_law(family, head, dtype):
    changes = label_changes(head)
    given = inputs(family, (7, 16))
    mask = given["attention_mask"]

    def logits(model):
        out = model(**given)
        x = (
            out.start_logits
            if head == "question_answering"
            else out.prediction_logits
            if (head == "pretraining" and family != "EL")
            else out.logits
        )
        return real_rows(x, mask) if x.shape[:2] == mask.shape else x

    with torch.no_grad():
        three = (
            our_model(family, head, dtype, **changes),
            hf_model(family, head, dtype, "sdpa", **changes),
            exact(family, head, **changes),
        )
        assert_as_good_as(*map(logits, three), factor=3)


def all_gradients(family, head, given, threads):
    torch.set_num_threads(threads)
    model = our_model(family, head, **label_changes(head))
    model.train()(**given, **targets(family, head, given["attention_mask"])).loss.backward()
    return {name: p.grad for name, p in model.named_parameters() if p.grad is not None}


RUNS = [(f, h, 1) for f in FAMILIES for h in ("masked_lm", "token_classification")]
RUNS += [("MB", "masked_lm", 2), ("BE", "token_classification", 2)]


@pytest.mark.parametrize(
    ("family", "head", "threads"), RUNS, ids=[f"{f}-{h}-{n}" for f, h, n in RUNS]
)
def test_C39_five_runs_give_the_same_bits(family, head, threads):
    given = inputs(family, (5, 33, 7, 7, 1, 16))
    runs = [all_gradients(family, head, given, threads) for _ in range(5)]
    for run in runs[1:]:
        assert run.keys() == runs[0].keys()
        for name, grad in run.items():
            assert_same_bits(grad, runs[0][name], name)


@each_backend
@pytest.mark.parametrize(("family", "head"), EVERY_HEAD, ids=[f"{f}-{h}" for f, h in EVERY_HEAD])
def test_C39_torchs_deterministic_switch_raises_nothing(family, head, backend):
    given = inputs(family, (5, 12, 0, 12))
    labels = targets(family, head, given["attention_mask"])
    model = our_model(family, head, backend=backend, **label_changes(head)).train()
    expected = model(**given, **labels).loss
    torch.use_deterministic_algorithms(True)
    try:
        loss = model(**given, **labels).loss
        loss.backward()
    finally:
        torch.use_deterministic_algorithms(False)
    assert_same_bits(loss[None], expected[None])


LONG = 8192


def watch_step(head, length, rows=1, **changes):
    """One training step of a tiny ModernBERT; labels on 15 % of the tokens."""
    model = our_model("MB", head, **changes, **label_changes(head)).train()
    ids_BS = 3 + ids(rows, length) % 80
    mask = torch.ones_like(ids_BS)
    mask[-1, length // 2 :] = 0 if rows > 1 else 1
    labels = targets("MB", head, mask)
    if head == "masked_lm":
        column = torch.arange(length)
        labels = {"labels": torch.where((mask == 1) & (column % 20 < 3), ids_BS, -100)}
    with Watch() as watch:
        out = model(ids_BS, mask, **labels)
        (out.last_hidden_state.sum() if head is None else out.loss).backward()
    return watch


@pytest.mark.parametrize(
    "head",
    [None, "masked_lm", "sequence_classification", "token_classification", "question_answering"],
)
def test_C57_no_square_tensor_at_8192_tokens(head):
    watch = watch_step(head, LONG, num_hidden_layers=2)
    # qkv and the gated MLP are a few widths per token; a mask would be 8192 per token
    assert watch.largest <= LONG * 400, f"{watch.largest} elements from {watch.largest_op}"


def test_C57_no_square_tensor_with_attention_dropout():
    watch = watch_step(
        None, LONG, num_hidden_layers=1, num_attention_heads=1, attention_dropout=0.1
    )
    assert watch.largest < LONG * LONG / 4, f"{watch.largest} elements from {watch.largest_op}"


def test_C57_eight_long_texts():
    watch = watch_step(None, LONG, rows=8, num_hidden_layers=1, layer_types=["sliding_attention"])
    assert watch.largest <= 8 * LONG * 400, f"{watch.largest} elements from {watch.largest_op}"


def test_C57_memory_grows_linearly():
    short, long = (watch_step("masked_lm", n, num_hidden_layers=2).total for n in (LONG // 2, LONG))
    assert long / short < 2.2


def test_C57_masked_lm_with_labels_never_holds_the_logits_of_all_tokens():
    vocabulary, length = 4001, 1024
    watch = watch_step("masked_lm", length, vocab_size=vocabulary)
    labelled = sum(t % 20 < 3 for t in range(length))
    blocks = -(-labelled // 64) * 64  # the native engine keeps scores in blocks of 64 tokens
    assert watch.largest <= blocks * vocabulary, f"{watch.largest} elements from {watch.largest_op}"
    model = our_model("MB", "masked_lm", vocab_size=vocabulary)
    with Watch() as watch:
        model(ids(1, length))
    assert watch.largest == length * vocabulary, (
        "the watch does not see logits, so this test sees nothing"
    )


@each_family
def test_a_batch_is_not_changed_by_a_call(family):
    rows = [[5, 6, 7], [8, 9]]
    batch = ef.Batch.from_lists(rows)
    before = {k: v.clone() for k, v in vars(batch).items() if isinstance(v, torch.Tensor)}
    our_model(family)(batch).last_hidden_state.sum().backward()
    for name, value in before.items():
        assert torch.equal(getattr(batch, name), value), name


def test_C34_head_norm_of_a_constant_row_has_finite_fp16_gradients():
    model = our_model("BE", "masked_lm", dtype=torch.float16).train()
    with torch.no_grad():
        model.head.transform.dense.weight.zero_()
        model.head.transform.dense.bias.fill_(1.0)
    batch = ef.Batch.from_lists([[5, 6, 7]])
    model(batch, labels=batch.ids_T).loss.backward()
    norm = model.head.transform.norm
    assert norm.weight.grad.isfinite().all()
    assert norm.bias.grad.isfinite().all()
