"""Under torch.autocast every head runs, keeps fp32 gradients and stays near its fp32 loss."""

import pytest
import torch
from tiny import EVERY_HEAD, hf_config, label_changes, targets

import encoder_fast as ef

LENGTHS = (33, 7, 1)


def build(family, head):
    changes = label_changes(head)
    torch.manual_seed(0)
    model = ef.from_config(hf_config(family, **changes).to_dict(), head=head)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(5)
    ids = torch.randint(3, 90, (3, 33))
    mask = (torch.arange(33) < torch.tensor(LENGTHS)[:, None]).long()
    return model, ids, mask, targets(family, head, mask)


@pytest.mark.parametrize("family, head", EVERY_HEAD)
def test_loss_and_gradients_follow_fp32(family, head):
    model, ids, mask, labels = build(family, head)
    exact = model(ids, mask, **labels).loss
    with torch.autocast("cpu", torch.bfloat16):
        loss = model(ids, mask, **labels).loss
    assert loss.dtype == torch.float32
    assert abs(loss - exact) <= 0.05 * abs(exact) + 0.02
    loss.backward()
    for name, parameter in model.named_parameters():
        if parameter.grad is not None:
            assert parameter.grad.dtype == torch.float32, name
            assert parameter.grad.isfinite().all(), name
    assert any(p.grad is not None and p.grad.abs().max() > 0 for p in model.head.parameters())


@pytest.mark.parametrize("family, head", EVERY_HEAD)
def test_inference_gives_the_training_loss(family, head):
    model, ids, mask, labels = build(family, head)
    with torch.autocast("cpu", torch.bfloat16):
        trained = model(ids, mask, **labels).loss
        with torch.no_grad():
            frozen = model(ids, mask, **labels).loss
    torch.testing.assert_close(frozen, trained.detach(), rtol=1e-2, atol=1e-2)


def test_windows_longer_than_a_block_run_under_autocast():
    model = ef.from_config(hf_config("MB").to_dict())
    batch = ef.Batch.from_lists([[5 + i % 80 for i in range(200)], [7] * 90])
    exact = model(batch).last_hidden_state
    with torch.autocast("cpu", torch.bfloat16):
        ours = model(batch).last_hidden_state
    assert (ours - exact).abs().max() < 0.1 * exact.abs().max()
