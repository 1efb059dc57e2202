"""Training: steps that lower a loss, accumulation that adds up, frozen parts."""

import pytest
import torch
from tiny import (
    EVERY_HEAD,
    FAMILIES,
    batch_of,
    inputs,
    label_changes,
    one_thread,  # noqa: F401
    our_model,
    packed_targets,
    targets,
)

each_family = pytest.mark.parametrize("family", FAMILIES)


def each(cases):
    return pytest.mark.parametrize(("family", "head"), cases, ids=[f"{f}-{h}" for f, h in cases])


@each(EVERY_HEAD)
def test_a_few_steps_lower_the_loss(family, head):
    given = inputs(family, (7, 16, 5, 9))
    labels = targets(family, head, given["attention_mask"])
    model = our_model(family, head, **label_changes(head)).train()
    optimiser = torch.optim.AdamW(model.parameters(), lr=3e-3)
    losses = []
    for _ in range(12):
        optimiser.zero_grad()
        loss = model(**given, **labels).loss
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 5.0)
        assert norm.isfinite() and norm > 0
        optimiser.step()
        losses.append(loss.item())
    assert losses[-1] < 0.8 * losses[0], losses


@each_family
def test_clipping_limits_the_norm_of_all_gradients(family):
    given = inputs(family, (7, 16))
    labels = targets(family, "masked_lm", given["attention_mask"])
    model = our_model(family, "masked_lm").train()
    model(**given, **labels).loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 0.01)
    total = torch.stack([p.grad.norm() for p in model.parameters() if p.grad is not None]).norm()
    torch.testing.assert_close(total, torch.tensor(0.01), rtol=1e-3, atol=0)


@each(EVERY_HEAD)
def test_C53_two_accumulated_halves_equal_one_batch(family, head):
    given = inputs(family, (7, 16, 5, 9))
    mask = given["attention_mask"]
    labels = targets(family, head, mask)
    whole, halves = (our_model(family, head, **label_changes(head)) for _ in range(2))
    whole_loss = whole(**given, **labels).loss
    whole_loss.backward()
    per_token = (
        labels["labels"] if labels.get("labels", torch.empty(0)).shape == mask.shape else None
    )
    if per_token is not None:
        items = int(((per_token != -100) & (mask == 1)).sum())
    else:
        items = 4
    total = 0.0
    for rows in (slice(0, 2), slice(2, 4)):
        part = {k: v[rows] for k, v in given.items()}
        wanted = {k: v[rows] for k, v in labels.items()}
        if head == "pretraining" and family != "EL":
            # the pair loss is weighed by the share of words: compare the words alone
            wanted = {"labels": wanted["labels"]}
        loss = halves(**part, **wanted, num_items_in_batch=items).loss
        loss.backward()
        total += loss.item()
    if head == "pretraining" and family != "EL":
        whole.zero_grad()
        whole_loss = whole(**given, labels=labels["labels"]).loss
        whole_loss.backward()
    assert abs(total - whole_loss.item()) < 1e-5
    for (name, p), q in zip(halves.named_parameters(), whole.parameters(), strict=True):
        if q.grad is None:
            assert p.grad is None, name
            continue
        scale = q.grad.abs().max().item()
        torch.testing.assert_close(
            p.grad, q.grad, rtol=1e-4, atol=1e-4 * scale + 1e-7, msg=lambda m, n=name: f"{n}: {m}"
        )


@each(EVERY_HEAD)
def test_packed_steps_equal_padded_steps(family, head):
    given = inputs(family, (7, 16, 5))
    labels = targets(family, head, given["attention_mask"])
    flat = packed_targets(labels, given["attention_mask"])
    models = [our_model(family, head, **label_changes(head)).train() for _ in range(2)]
    losses = [[], []]
    for i, call in enumerate(
        (lambda m: m(**given, **labels), lambda m: m(batch_of(given), **flat))
    ):
        optimiser = torch.optim.SGD(models[i].parameters(), lr=1e-2)
        for _ in range(3):
            optimiser.zero_grad()
            loss = call(models[i]).loss
            loss.backward()
            optimiser.step()
            losses[i].append(loss.item())
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)
    assert losses[0][0] != losses[0][2]


@each_family
def test_a_step_leaves_a_frozen_backbone_alone(family):
    given = inputs(family, (7, 16))
    labels = targets(family, "token_classification", given["attention_mask"])
    model = our_model(
        family, "token_classification", **label_changes("token_classification")
    ).train()
    model.encoder.requires_grad_(False)
    before = {n: p.clone() for n, p in model.named_parameters()}
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-2)
    model(**given, **labels).loss.backward()
    optimiser.step()
    for name, p in model.named_parameters():
        assert torch.equal(p, before[name]) == name.startswith("encoder."), name
