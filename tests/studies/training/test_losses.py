import pytest
import torch
from monai.losses import DiceLoss

from tensorprojection.studies.training.metrics import dice_loss


def monais(logits, masks):
    peer = DiceLoss(sigmoid=False, batch=True, smooth_nr=1, smooth_dr=1)
    return peer(logits.sigmoid(), masks.to(logits.dtype))


def with_gradient(loss, logits, masks):
    logits = logits.clone().requires_grad_()
    value = loss(logits, masks)
    value.backward()
    return value.detach(), logits.grad


def batch(kind):
    logits = 4 * torch.randn(5, 1, 24, 24)
    masks = torch.rand(5, 1, 24, 24) < 0.15
    if kind == "one empty":
        masks[2] = False
    elif kind == "all empty":
        masks[:] = False
    elif kind == "all full":
        masks[:] = True
    elif kind == "empty and none found":
        masks[:] = False
        logits -= 30
    return logits, masks


@pytest.mark.parametrize("dtype", [torch.uint8, torch.bool, torch.float32])
@pytest.mark.parametrize(
    "kind", ["usual", "one empty", "all empty", "all full", "empty and none found"]
)
def test_the_same_as_monais(kind, dtype):
    logits, masks = batch(kind)
    value, gradient = with_gradient(dice_loss, logits, masks.to(dtype))
    expected, expected_gradient = with_gradient(monais, logits, masks)
    torch.testing.assert_close(value, expected, atol=1e-6, rtol=0)
    scale = expected_gradient.abs().max().clamp(min=1e-12)
    torch.testing.assert_close(gradient / scale, expected_gradient / scale, atol=1e-5, rtol=0)


def test_by_hand():
    # p = 3/4, 1/4, 1/2 and y = 1, 0, 1.
    logits, masks = torch.tensor([3.0, 1 / 3, 1.0]).log(), torch.tensor([1, 0, 1])
    assert dice_loss(logits, masks).item() == pytest.approx(1 - (2 * 1.25 + 1) / (1.5 + 2 + 1))
    assert dice_loss(logits, masks, smooth=0).item() == pytest.approx(1 - 2.5 / 3.5)


def test_the_whole_batch_counts_together():
    logits, masks = batch("usual")
    single = torch.stack([dice_loss(x, y) for x, y in zip(logits, masks, strict=True)]).mean()
    assert dice_loss(logits, masks) != single
    joined = dice_loss(logits.reshape(1, 1, -1, 24), masks.reshape(1, 1, -1, 24))
    torch.testing.assert_close(dice_loss(logits, masks), joined)


@pytest.mark.parametrize("shift", [0.0, -12.0, 12.0])
def test_float32_holds_over_a_batch_of_the_largest_images(shift):
    logits = 3 * torch.randn(50, 1, 192, 192) + shift
    masks = torch.rand(50, 1, 192, 192) < 0.15
    value, gradient = with_gradient(dice_loss, logits, masks)
    expected, expected_gradient = with_gradient(dice_loss, logits.double(), masks)
    torch.testing.assert_close(value.double(), expected, atol=1e-6, rtol=0)
    error = (gradient.double() - expected_gradient).norm()
    assert error < 1e-5 * expected_gradient.norm()


@pytest.mark.parametrize("extreme", [1e4, -1e4, float("inf"), float("-inf")])
def test_extreme_logits_give_finite_losses_and_gradients(extreme):
    _, masks = batch("usual")
    value, gradient = with_gradient(dice_loss, torch.full(masks.shape, extreme), masks)
    assert 0 <= value <= 1
    assert gradient.isfinite().all()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_summed_in_float32(dtype):
    logits = torch.randn(4, 1, 192, 192).to(dtype)
    masks = torch.rand(4, 1, 192, 192) < 0.15
    value, gradient = with_gradient(dice_loss, logits, masks)
    assert value.dtype == torch.float32
    assert gradient.dtype == dtype
    torch.testing.assert_close(value.double(), dice_loss(logits.double(), masks), atol=1e-6, rtol=0)


def test_shapes_that_would_broadcast_are_refused():
    with pytest.raises(ValueError, match=r"\(4, 1, 8, 8\), got \(4, 8, 8\). Pass masks\[:, None\]"):
        dice_loss(torch.rand(4, 1, 8, 8), torch.ones(4, 8, 8))
    with pytest.raises(ValueError, match=r"\(4,\), got \(\)\.$"):
        dice_loss(torch.rand(4), torch.ones(()))
