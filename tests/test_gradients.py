"""Gradients of every parameter of every family and head against transformers'."""

import pytest
import torch
from closeness import assert_as_good_as, ulps
from tiny import (
    EVERY_HEAD,
    FAMILIES,
    PAD,
    alone,
    batch_of,
    exact_modernbert,
    hf_model,
    ids,
    inputs,
    label_changes,
    one_thread,  # noqa: F401
    our_model,
    packed_targets,
    padded,
    real_rows,
    targets,
)

import encoder_fast as ef
from encoder_fast.weights import sources

BACKENDS = ("torch", "reference")
LENGTHS = (2, 7, 16)


def each(cases):
    return pytest.mark.parametrize(("family", "head"), cases, ids=[f"{f}-{h}" for f, h in cases])


def hf_grads(model) -> dict[str, torch.Tensor | None]:
    return {name: p.grad for name, p in model.named_parameters(remove_duplicate=False)}


def by_our_names(model, grads: dict, head: str | None) -> dict[str, torch.Tensor]:
    """transformers' gradients under our names (query, key, value stacked); none is left."""
    table, used, ours = sources(model, prefixed=head is not None), set(), {}
    for name, source in table.items():
        parts = [grads[theirs] for theirs in source.names]
        used |= {*source.names, *source.also}
        ours[name] = None if parts[0] is None else torch.cat(parts)
    tied = {"decoder.weight", "decoder.bias", "generator_lm_head.weight"}
    left = [n for n in grads if n not in used and not any(n.endswith(t) for t in tied)]
    assert not left, (
        f"parameters of transformers that no gradient of ours was compared with: {left}"
    )
    return ours


def check_all(model, plain, oracle, head):
    """Every gradient by the accuracy law; where transformers has none, ours is zero or absent."""
    mine = {name: p.grad for name, p in model.named_parameters()}
    plain, oracle = (by_our_names(model, hf_grads(m), head) for m in (plain, oracle))
    assert mine.keys() == plain.keys()
    absent = {name for name, grad in plain.items() if grad is None}
    for name in absent:
        assert mine[name] is None or (mine[name] == 0).all(), name
    kept = [name for name in mine if name not in absent]
    for name in kept:
        # A sum that is 0 by its formula (softmax minus one-hot) is rounded at its terms' scale.
        floor = ulps(torch.float32, 1.0) if oracle[name].abs().max() < 1e-9 else None
        assert_as_good_as(mine[name], plain[name], oracle[name], factor=3, floor=floor, name=name)
    assert sum(bool((mine[n] != 0).any()) for n in kept) > 10, "hardly any gradient"


def base_loss(x_T):
    """Weighs every output number differently."""
    return (x_T * torch.linspace(-1, 1, x_T.numel(), dtype=x_T.dtype).view_as(x_T).sin()).sum()


def run_base(family, given, backend="auto", **changes):
    """Backward of `base_loss` over real tokens: ours, transformers' fp32 and its fp64."""
    mask = given["attention_mask"]
    ours = our_model(family, backend=backend, **changes)
    plain, oracle = (
        hf_model(family, None, dtype, **changes) for dtype in (torch.float32, torch.float64)
    )
    base_loss(real_rows(ours(**given).last_hidden_state, mask)).backward()
    base_loss(real_rows(plain(**given).last_hidden_state, mask)).backward()
    with exact_modernbert():
        base_loss(real_rows(oracle(**given).last_hidden_state, mask)).backward()
    return ours, plain, oracle


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("family", FAMILIES)
def test_encoder_gradients(family, backend):
    check_all(*run_base(family, inputs(family, LENGTHS), backend), None)


@pytest.mark.parametrize("backend", BACKENDS)
@each(EVERY_HEAD)
def test_head_gradients(family, head, backend):
    changes = label_changes(head)
    # QA: transformers' softmax takes in padding slots and ours does not, so texts of one length
    given = inputs(family, (7, 7) if head == "question_answering" else LENGTHS)
    labels = targets(family, head, given["attention_mask"])
    ours = our_model(family, head, backend=backend, **changes)
    plain, oracle = (
        hf_model(family, head, dtype, **changes) for dtype in (torch.float32, torch.float64)
    )
    ours(**given, **labels).loss.backward()
    plain(**given, **labels).loss.backward()
    with exact_modernbert():
        oracle(**given, **labels).loss.backward()
    check_all(ours, plain, oracle, head)


@each(EVERY_HEAD)
def test_packed_gradients_equal_padded(family, head):
    changes = label_changes(head)
    given = inputs(family, LENGTHS)
    labels = targets(family, head, given["attention_mask"])
    one, two = our_model(family, head, **changes), our_model(family, head, **changes)
    one(**given, **labels).loss.backward()
    two(batch_of(given), **packed_targets(labels, given["attention_mask"])).loss.backward()
    for (name, a), b in zip(one.named_parameters(), two.parameters(), strict=True):
        assert (a.grad is None) == (b.grad is None), name
        if a.grad is not None:
            torch.testing.assert_close(
                b.grad, a.grad, rtol=1e-4, atol=1e-5, msg=lambda m, n=name: f"{n}: {m}"
            )


@pytest.mark.parametrize("family", FAMILIES)
def test_gradient_with_respect_to_inputs_embeds(family):
    given = inputs(family, LENGTHS)
    mask = given.pop("attention_mask")
    vectors = torch.randn(*mask.shape, 16 if family in ("AL", "EL") else 32)
    given.pop("input_ids")
    grads = []
    for model, dtype in (
        (our_model(family), torch.float32),
        (hf_model(family), torch.float32),
        (hf_model(family, dtype=torch.float64), torch.float64),
    ):
        x = vectors.to(dtype, copy=True).requires_grad_()
        if dtype == torch.float64:
            with exact_modernbert():
                out = model(inputs_embeds=x, attention_mask=mask, **given).last_hidden_state
        else:
            out = model(inputs_embeds=x, attention_mask=mask, **given).last_hidden_state
        base_loss(real_rows(out, mask)).backward()
        grads.append(x.grad)
    assert (grads[0][mask == 0] == 0).all()
    assert_as_good_as(*grads, factor=3)


def square_loss(out, mask):
    return real_rows(out.last_hidden_state, mask).square().sum()


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("family", FAMILIES)
def test_C07_an_empty_row_poisons_no_gradient(family, backend):
    ids_BS, mask = padded(family, (5, 0, 9))
    model = our_model(family, backend=backend).train()
    square_loss(model(ids_BS, mask), mask).backward()
    alone_model = our_model(family, backend=backend).train()
    given = {"input_ids": ids_BS, "attention_mask": mask}
    sum(alone(alone_model, given, b).last_hidden_state.square().sum() for b in (0, 2)).backward()
    compared = 0
    for (name, p), q in zip(model.named_parameters(), alone_model.parameters(), strict=True):
        if q.grad is None:
            continue
        assert p.grad.isfinite().all(), name
        scale = q.grad.abs().max().item()
        torch.testing.assert_close(
            p.grad, q.grad, rtol=1e-4, atol=1e-4 * scale + 1e-7, msg=lambda m, n=name: f"{n}: {m}"
        )
        compared += 1
    assert compared > 10


@pytest.mark.parametrize("groups", [1, 2, 3])
@pytest.mark.parametrize("inner", [1, 2])
def test_C52_shared_weights_get_the_gradient_of_every_use(groups, inner):
    changes = {"num_hidden_layers": 6, "num_hidden_groups": groups, "inner_group_num": inner}
    check_all(*run_base("AL", inputs("AL", LENGTHS), **changes), None)


BIASES = {"attention_bias": True, "mlp_bias": True, "norm_bias": True}


def test_modernbert_gradients_with_every_bias():
    check_all(*run_base("MB", inputs("MB", LENGTHS), **BIASES), None)


def test_modernbert_gradients_over_many_windows():
    """300 tokens: more than one block of queries in a local layer."""
    check_all(*run_base("MB", inputs("MB", (300, 70))), None)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("family", FAMILIES)
def test_the_pad_row_of_the_table_never_learns(family, backend):
    """As the checkpoints' own `padding_idx`: a real pad id teaches its row nothing."""
    ids_BS = ids(2, 9)
    ids_BS[0, 3] = PAD[family]
    ours, theirs = our_model(family, backend=backend), hf_model(family)
    base_loss(ours(ids_BS).last_hidden_state).backward()
    base_loss(theirs(ids_BS).last_hidden_state).backward()
    grad = ours.encoder.embeddings.token.weight.grad
    assert (grad[PAD[family]] == 0).all()
    torch.testing.assert_close(
        grad, theirs.get_input_embeddings().weight.grad, rtol=1e-3, atol=1e-3
    )


@pytest.mark.parametrize("pad", [1, 3])
def test_C26_position_rows_that_learn(pad):
    """RoBERTa: rows pad + 1 to pad + length, and never the row of the pad id."""
    model = our_model("RO", pad_token_id=pad)
    given = inputs("RO", (1, 5, 12))
    lists = [row[:n].tolist() for row, n in zip(given["input_ids"], (1, 5, 12), strict=True)]
    base_loss(
        model(ef.Batch.from_lists([[i + 3 for i in row] for row in lists])).last_hidden_state
    ).backward()
    grad = model.encoder.embeddings.position.weight.grad
    assert grad.abs().sum(1).nonzero()[:, 0].tolist() == list(range(pad + 1, pad + 13))
