"""torch.compile and torch.export: one graph, no breaks, whatever the lengths of a batch."""

import shutil

import pytest
import torch
from tiny import FAMILIES, hf_config

import encoder_fast as ef
from encoder_fast.kernels import _traced, attention

BATCHES = (
    [[5, 6, 7, 8] * 8, [9, 10], [], [5, 6, 7, 8] * 8 + [3]],
    [[5] * 20, [9, 10, 11], [4] * 7],
    [[6] * 30, [9, 12], [4] * 7, [8] * 33],
)


def build(family, head=None, **changes):
    torch.manual_seed(0)
    values = hf_config(family, **changes).to_dict()
    model = ef.from_config(values, head=head)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(5)
    return model


def targets(family, head, batch):
    if head == "sequence_classification":
        return {"labels": torch.arange(batch.B) % 2}
    if head == "masked_lm":
        return {"labels": torch.where(torch.arange(batch.T) % 3 == 0, batch.ids_T, -100)}
    if head == "token_classification":
        return {"labels": torch.arange(batch.T) % 2}
    if head == "pretraining":
        pair = {} if family == "EL" else {"next_sentence_label": torch.arange(batch.B) % 2}
        return {"labels": torch.arange(batch.T) % 2, **pair}
    if head == "question_answering":
        starts = torch.arange(batch.B)
        return {"start_positions": starts, "end_positions": starts + 1}
    return {}


def gradients(model, out):
    generator = torch.Generator().manual_seed(2)
    loss = out.loss
    if loss is None:
        results = [x for x in (out.last_hidden_state, out.pooler_output) if x is not None]
        loss = sum((x * torch.randn(x.shape, generator=generator)).sum() for x in results)
    found = torch.autograd.grad(loss, list(model.parameters()), allow_unused=True)
    return [g for g in found if g is not None]


EVERY_HEAD = ("sequence_classification", "masked_lm", "token_classification", "question_answering")
COMBINATIONS = [
    *((family, head) for family in FAMILIES for head in (None, "masked_lm")),
    *(("BE", head) for head in (*EVERY_HEAD, "pretraining") if head != "masked_lm"),
    ("MB", "sequence_classification"),
    ("EL", "pretraining"),
]


@pytest.mark.parametrize("family, head", COMBINATIONS)
def test_one_graph_serves_every_batch(family, head):
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    model = build(family, head)
    compiled = torch.compile(model, fullgraph=True, dynamic=True, backend="aot_eager")
    for ids in BATCHES:
        batch = ef.Batch.from_lists(ids)
        ours, eager = (
            compiled(batch, **targets(family, head, batch)),
            model(batch, **targets(family, head, batch)),
        )
        torch.testing.assert_close(
            ours.last_hidden_state, eager.last_hidden_state, rtol=1e-4, atol=1e-4
        )
        for a, b in zip(gradients(model, ours), gradients(model, eager), strict=True):
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4 * float(b.abs().max()) + 1e-7)
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1


@pytest.mark.skipif(shutil.which("g++") is None, reason="inductor needs a C++ compiler")
def test_inductor_agrees_with_eager():
    torch._dynamo.reset()
    model = build("MB")
    compiled = torch.compile(model, fullgraph=True, dynamic=True)
    with torch.inference_mode():
        for ids in BATCHES[:2]:
            batch = ef.Batch.from_lists(ids)
            ours, eager = compiled(batch).last_hidden_state, model(batch).last_hidden_state
            torch.testing.assert_close(ours, eager, rtol=1e-4, atol=1e-4)


def test_padded_call_compiles_and_agrees():
    torch._dynamo.reset()
    model = build("MB")
    ids = torch.randint(3, 90, (3, 20))
    mask = (torch.arange(20) < torch.tensor([[20], [7], [1]])).long()
    compiled = torch.compile(model, backend="aot_eager")
    with torch.no_grad():
        ours, eager = compiled(ids, mask), model(ids, mask)
    torch.testing.assert_close(
        ours.last_hidden_state, eager.last_hidden_state, rtol=1e-4, atol=1e-4
    )


def op_arguments(half, dropout_p, lengths=(5, 0, 200, 5)):
    torch.manual_seed(1)
    T = sum(lengths)
    columns = torch.cat([torch.arange(n) for n in lengths])
    qkv = torch.randn(T, 3, 2, 8, requires_grad=True)
    n = torch.tensor(lengths)
    return qkv, n, n.clone(), columns, half, dropout_p, torch.tensor(7)


@pytest.mark.parametrize("half, dropout_p", [(-1, 0.0), (4, 0.0), (4, 0.3)])
def test_opcheck(half, dropout_p):
    arguments = op_arguments(half, dropout_p)
    torch.library.opcheck(torch.ops.encoder_fast.attention.default, arguments)
    detached = [a.detach() if isinstance(a, torch.Tensor) else a for a in arguments]
    grad = torch.randn(detached[0].shape[0], 2, 8)
    torch.library.opcheck(torch.ops.encoder_fast.attention_backward.default, (grad, *detached))


@pytest.mark.parametrize("half", [-1, 4])
def test_C56_operator_backward_drops_what_the_forward_dropped(half):
    qkv, *rest = op_arguments(half, 0.5, lengths=(6, 80))
    qkv = qkv.double().detach().requires_grad_()

    def run(x):
        return torch.ops.encoder_fast.attention(x, *rest)

    assert torch.equal(run(qkv), run(qkv))
    assert torch.autograd.gradcheck(run, (qkv,), fast_mode=True)


def test_operator_leaves_the_global_generator_alone():
    arguments = op_arguments(-1, 0.5)
    before = torch.get_rng_state()
    torch.ops.encoder_fast.attention(*arguments)
    assert torch.equal(torch.get_rng_state(), before)


class OneLayer(torch.nn.Module):
    def forward(self, qkv, lengths, spans, columns):
        plan = _traced.TracedPlan(lengths, spans, columns)
        return attention.torch_attention(qkv, plan, 4)[0]


def test_export_keeps_the_operator():
    qkv, n, spans, columns, *_ = op_arguments(4, 0.0)
    arguments = qkv.detach(), n, spans, columns
    T, B = torch.export.Dim("T", min=2), torch.export.Dim("B", min=2)
    shapes = {"qkv": {0: T}, "lengths": {0: B}, "spans": {0: B}, "columns": {0: T}}
    program = torch.export.export(OneLayer(), arguments, dynamic_shapes=shapes)
    names = [str(node.target) for node in program.graph.nodes]
    assert any("encoder_fast.attention" in name for name in names)
    other = [a.detach() for a in op_arguments(4, 0.0, lengths=(3, 9, 70))[:4]]
    for tensors in (arguments, other):
        torch.testing.assert_close(program.module()(*tensors), OneLayer()(*tensors))
