import numpy as np
import pytest
import torch
from sklearn.metrics import (
    accuracy_score,
    f1_score,
    jaccard_score,
    log_loss,
    recall_score,
    roc_auc_score,
)

from tensorprojection.studies.training.metrics import (
    CLASSIFICATION,
    SEGMENTATION,
    Classification,
    Segmentation,
    dice_loss,
)


def in_batches(metrics, x, y, size):
    for start in range(0, len(y), size):
        metrics.update(x[start : start + size], y[start : start + size])
    return metrics.compute()


# Classification


def classified(kind):
    logits = 2 * torch.randn(203, 4)
    labels = torch.randint(4, (203,)) if kind != "rare class" else (torch.rand(203) < 0.02).long()
    logits[torch.arange(203), labels] += 1
    if kind == "never predicted":
        logits[:, 2] = -20
    elif kind == "not there":
        labels[labels == 2] = 1
    elif kind == "neither":
        logits[:, 2] = -20
        labels[labels == 2] = 1
    elif kind == "one class only":
        labels[:] = 3
    elif kind == "all wrong":
        labels = (logits.argmax(1) + 1) % 4
    return logits, labels


KINDS = [
    *("usual", "rare class", "never predicted", "not there", "neither"),
    *("one class only", "all wrong"),
]


@pytest.mark.parametrize("kind", KINDS)
def test_classification_is_as_scikit_learn_has_it(kind):
    logits, labels = classified(kind)
    metrics = Classification(4)
    got = in_batches(metrics, logits, labels, 50)
    predicted = logits.argmax(1)
    p = logits.double().softmax(1).numpy()
    expected = {
        "loss": log_loss(labels, p, labels=range(4)),
        "accuracy": accuracy_score(labels, predicted),
        "f1": f1_score(labels, predicted, average="weighted", zero_division=0),
    }
    # Of each class against all others, and the mean over the classes that are there.
    there = [k for k in range(4) if 0 < (labels == k).sum() < len(labels)]
    by_class = [
        (
            recall_score(labels == k, predicted == k),
            recall_score(labels != k, predicted != k),
            roc_auc_score(labels == k, p[:, k]),
        )
        for k in there
    ]
    found = metrics.by_class()
    assert list(found) == ["sensitivity", "specificity", "auc"]
    for k, expected_of_class in zip(there, by_class, strict=True):
        assert [found[name][k] for name in found] == pytest.approx(expected_of_class, rel=1e-12)
    means = np.mean(by_class, axis=0) if by_class else [np.nan] * 3
    expected |= dict(zip(("sensitivity", "specificity", "auc"), means, strict=True))
    assert got == pytest.approx(expected, rel=1e-12, nan_ok=True)
    assert list(got) == [metric.name for metric in CLASSIFICATION]


@pytest.mark.parametrize("size", [1, 7, 100])
def test_classification_does_not_depend_on_the_batches(size):
    logits, labels = classified("usual")
    whole = in_batches(Classification(4), logits, labels, len(labels))
    parts = in_batches(Classification(4), logits, labels, size)
    assert parts["loss"] == pytest.approx(whole["loss"], rel=1e-12)
    del parts["loss"], whole["loss"]
    assert parts == whole


def test_equal_probabilities_count_half():
    metrics = Classification(2)
    metrics.update(torch.tensor([[0.0, 1.0], [0.0, 1.0], [1.0, 0.0]]), torch.tensor([0, 1, 0]))
    assert metrics.by_class()["auc"] == [0.75, 0.75]  # a tie, and a pair in the right order


def test_the_loss_is_a_mean_over_images_and_not_over_batches():
    metrics = Classification(2)
    metrics.update(torch.tensor([[0.0, 0.0]] * 3), torch.tensor([0, 1, 1]))
    metrics.update(torch.tensor([[0.0, 50.0]]), torch.tensor([1]))
    assert metrics.compute()["loss"] == pytest.approx(0.75 * np.log(2))


def test_very_wrong_logits_cost_what_they_should():
    metrics = Classification(2)
    metrics.update(torch.tensor([[1e4, -1e4]]), torch.tensor([1]))
    assert metrics.compute()["loss"] == pytest.approx(2e4)


# Segmentation


def segmented(kind):
    masks = torch.rand(20, 1, 16, 16) < 0.15
    logits = 3 * torch.randn(20, 1, 16, 16) + masks
    if kind == "logits in [0, 1]":
        logits = torch.rand(logits.shape)
    elif kind == "none found":
        logits -= 30
    elif kind == "none there":
        masks[:] = False
    elif kind == "neither":
        masks[:] = False
        logits -= 30
    elif kind == "logits of 0":
        logits[:] = 0
    elif kind == "perfect":
        logits = 30.0 * (2 * masks.float() - 1)
    return logits, masks.to(torch.uint8)


@pytest.mark.parametrize(
    "kind",
    [
        *("usual", "logits in [0, 1]", "logits of 0", "none found", "none there", "neither"),
        "perfect",
    ],
)
def test_segmentation_is_as_scikit_learn_has_it(kind):
    logits, masks = segmented(kind)
    got = in_batches(Segmentation(), logits, masks, 6)
    actual, predicted = masks.flatten(), logits.sigmoid().flatten() > 0.5
    images = list(zip(masks.flatten(1), logits.sigmoid().flatten(1) > 0.5, strict=True))
    expected = {
        "loss": dice_loss(logits.double(), masks).item(),
        "dice": 1 - dice_loss(logits.double(), masks).item(),  # the paper's coefficient
        "iou": jaccard_score(actual, predicted, zero_division=1),
        "mdice": np.mean([f1_score(*pair, zero_division=1) for pair in images]),
        "miou": np.mean([jaccard_score(*pair, zero_division=1) for pair in images]),
        "sensitivity": recall_score(actual, predicted, zero_division=1),
        "specificity": recall_score(1 - actual, ~predicted, zero_division=1),
    }
    assert got == pytest.approx(expected, rel=1e-12)
    assert list(got) == [metric.name for metric in SEGMENTATION]


def test_nothing_there_and_nothing_found_is_right():
    got = in_batches(Segmentation(), *segmented("neither"), 6)
    right = {"dice": 1, "iou": 1, "mdice": 1, "miou": 1, "sensitivity": 1, "specificity": 1}
    assert got == pytest.approx({"loss": 0, **right}, abs=1e-6)


@pytest.mark.parametrize("size", [1, 7])
def test_segmentation_does_not_depend_on_the_batches(size):
    logits, masks = segmented("usual")
    whole = in_batches(Segmentation(), logits, masks, len(masks))
    parts = in_batches(Segmentation(), logits, masks, size)
    assert parts["loss"] == pytest.approx(whole["loss"], rel=1e-12)
    assert parts["dice"] == pytest.approx(whole["dice"], rel=1e-12)
    for name in ("iou", "mdice", "miou"):
        assert parts[name] == whole[name]


def test_another_smoothing():
    logits, masks = segmented("usual")
    got = in_batches(Segmentation(smooth=100.0), logits, masks, 6)["loss"]
    assert got == pytest.approx(dice_loss(logits.double(), masks, smooth=100.0).item(), rel=1e-12)


# Both


def test_every_metric_declares_if_higher_is_better():
    low = {metric.name for metric in CLASSIFICATION + SEGMENTATION if not metric.higher_is_better}
    assert low == {"loss"}


def test_gradients_and_inference_mode_do_not_matter():
    logits, labels = classified("usual")
    expected = in_batches(Classification(4), logits, labels, 50)
    with torch.inference_mode():
        frozen = logits.clone()
        assert in_batches(Classification(4), frozen, labels, 50) == expected
    assert in_batches(Classification(4), logits.requires_grad_(), labels, 50) == expected
    logits, masks = segmented("usual")
    expected = in_batches(Segmentation(), logits, masks, 6)
    assert in_batches(Segmentation(), logits.requires_grad_(), masks, 6) == expected


def test_an_empty_batch_changes_nothing():
    logits, labels = classified("usual")
    metrics = Classification(4)
    metrics.update(logits, labels)
    expected = metrics.compute()
    metrics.update(logits[:0], labels[:0])
    assert metrics.compute() == expected


@pytest.mark.parametrize("metrics", [Classification(4), Segmentation()])
def test_nothing_taken_in(metrics):
    with pytest.raises(ValueError, match="at least one image before compute, got none"):
        metrics.compute()


def test_wrong_labels_and_masks():
    for wrong in (5, -1):
        with pytest.raises(ValueError, match=f"labels 0 … 1, got {wrong}"):
            Classification(2).update(torch.rand(3, 2), torch.tensor([0, 1, wrong]))
    with pytest.raises(ValueError, match=r"\(N, 2\) and .* got \(3, 4\) and \(3,\)"):
        Classification(2).update(torch.rand(3, 4), torch.tensor([0, 1, 1]))
    with pytest.raises(ValueError, match="masks of 0 and 1, got values up to 255"):
        Segmentation().update(torch.rand(1, 1, 2, 2), torch.full((1, 1, 2, 2), 255))
    with pytest.raises(ValueError, match=r"Pass masks\[:, None\]"):
        Segmentation().update(torch.rand(4, 1, 2, 2), torch.ones(4, 2, 2))
