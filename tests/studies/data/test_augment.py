import dataclasses

import numpy as np
import pytest
import torch

from tensorprojection.studies.chest import CHANGES as CHEST
from tensorprojection.studies.data.augment import (
    Augmentation,
    Change,
    augment,
    draw,
)
from tensorprojection.studies.data.phantoms import polyp_phantoms
from tensorprojection.studies.kvasir import CHANGES as KVASIR


@pytest.fixture(scope="module")
def scenes():
    return polyp_phantoms(8, size=64)


def one(image, change):
    return augment(image[None], None, [change])[0][0]


def noise(*shape):
    return np.random.default_rng(0).integers(0, 256, shape, np.uint8)


SHAPES = pytest.mark.parametrize("shape", [(32, 32), (32, 32, 3), (33, 33), (20, 31, 3)])


@SHAPES
def test_no_change_gives_the_image_back(shape):
    image, mask = noise(*shape), noise(*shape[:2]) & 1
    same, same_mask = augment(image[None], mask[None], [Change()])
    np.testing.assert_array_equal(same[0], image)
    np.testing.assert_array_equal(same_mask[0], mask)
    assert same.dtype == same_mask.dtype == np.uint8


def keras_oracle(image, change):
    """What ImageDataGenerator.apply_transform does, step by step, pixel by pixel.

    As Keras documents it: rotation, shift, shear and zoom are multiplied in this order into one
    matrix from places of the result to places of the image, around the centre; then the channel
    shift, clipped to the range of the image; then flips; then brightness.
    """
    height, width = image.shape[:2]
    turn = np.deg2rad(change.rotation)
    rotation = [[np.cos(turn), -np.sin(turn), 0], [np.sin(turn), np.cos(turn), 0], [0, 0, 1]]
    shift = [[1, 0, change.shift[0] * width], [0, 1, change.shift[1] * height], [0, 0, 1]]
    shear = [[1, -np.sin(change.shear), 0], [0, np.cos(change.shear), 0], [0, 0, 1]]
    zoom = np.diag([change.zoom[0], change.zoom[1], 1])
    centre = np.array([[1, 0, (width - 1) / 2], [0, 1, (height - 1) / 2], [0, 0, 1]])
    matrix = centre @ rotation @ shift @ shear @ zoom @ np.linalg.inv(centre)

    moved = np.empty(image.shape, np.float64)
    for row in range(height):
        for column in range(width):
            x, y, _ = matrix @ (column, row, 1)
            x, y = np.clip(x, 0, width - 1), np.clip(y, 0, height - 1)
            left, top = int(x), int(y)
            right, bottom = min(left + 1, width - 1), min(top + 1, height - 1)
            above = image[top, left] * (1 - (x - left)) + image[top, right] * (x - left)
            below = image[bottom, left] * (1 - (x - left)) + image[bottom, right] * (x - left)
            moved[row, column] = above * (1 - (y - top)) + below * (y - top)
    moved = np.clip(moved + change.colour, moved.min(), moved.max())
    if change.flip[0]:
        moved = moved[:, ::-1]
    if change.flip[1]:
        moved = moved[::-1]
    return np.clip(moved * change.brightness, 0, 255)


EXTREME = Augmentation(
    rotation=80,
    shift=0.4,
    shear=0.5,
    zoom=0.6,
    colour=90,
    flip_horizontal=True,
    flip_vertical=True,
    brightness=(0.3, 2.5),
)


@pytest.mark.parametrize("ranges", [KVASIR, CHEST, EXTREME], ids=["kvasir", "chest", "extreme"])
@pytest.mark.parametrize("shape", [(24, 24, 3), (19, 19), (20, 31, 3)])
def test_copies_are_what_keras_makes(ranges, shape):
    image = noise(*shape) // 2 + 40  # lowest and highest level are not 0 and 255
    for k in range(6):
        change = draw(ranges, 0, k, 0)
        wanted = keras_oracle(image, change)
        # Rounded once, from float32: within half a level and some.
        np.testing.assert_allclose(one(image, change), wanted, rtol=0, atol=0.52)


@pytest.mark.parametrize(
    "change",
    [
        Change(rotation=40, shift=(0.3, 0)),
        Change(shift=(0.2, 0.1), zoom=(0.5, 1)),
        Change(shear=0.6, zoom=(1, 0.5)),
        Change(rotation=40, flip=(True, False)),
        Change(colour=60, brightness=1.5),
    ],
)
def test_the_order_of_two_changes_is_keras_order(change):
    image = noise(24, 24, 3) // 2
    np.testing.assert_allclose(one(image, change), keras_oracle(image, change), atol=0.52)


def test_the_colour_shift_is_the_same_in_all_channels_within_the_images_own_range():
    image = np.array([[[100, 150, 90], [120, 30, 200]]], np.uint8)
    got = one(image, Change(colour=20))
    np.testing.assert_array_equal(got, [[[120, 170, 110], [140, 50, 200]]])
    np.testing.assert_array_equal(one(image, Change(colour=-20))[0, 1], [100, 30, 180])


def test_image_and_mask_move_together(scenes):
    masks = scenes.masks
    changes = [
        dataclasses.replace(draw(KVASIR, 3, k, 0), brightness=1.0, colour=0.0)
        for k in range(len(masks))
    ]
    images, moved = augment(masks * 255, masks, changes)
    assert (moved != masks).mean() > 0.05
    # Within half a pixel of the outline the two ways to sample may differ, nowhere else.
    differ = (images > 127) != moved
    far = (images == 0) | (images == 255)
    assert not differ[far].any()
    assert differ.mean() < 0.01


def test_masks_stay_binary_and_colours_leave_them_alone(scenes):
    changes = [draw(KVASIR, 0, k, 1) for k in range(len(scenes))]
    plain = [dataclasses.replace(c, brightness=1.0, colour=0.0) for c in changes]
    images, masks = augment(scenes.images, scenes.masks, changes)
    plain_images, plain_masks = augment(scenes.images, scenes.masks, plain)
    assert set(np.unique(masks)) == {0, 1}
    np.testing.assert_array_equal(masks, plain_masks)
    assert (images != plain_images).mean() > 0.5


@pytest.mark.parametrize("gray", [False, True])
def test_neither_chunks_nor_threads_change_a_bit(scenes, gray):
    images = scenes.images[..., 0] if gray else scenes.images
    changes = [draw(KVASIR, 1, k, 0) for k in range(len(images))]
    whole, whole_masks = augment(images, scenes.masks, changes)
    try:
        torch.set_num_threads(2)
        for size in (1, 3):
            for a in range(0, len(images), size):
                part = slice(a, a + size)
                got, got_masks = augment(images[part], scenes.masks[part], changes[part])
                np.testing.assert_array_equal(got, whole[part])
                np.testing.assert_array_equal(got_masks, whole_masks[part])
    finally:
        torch.set_num_threads(1)


def test_draws_fill_their_ranges_and_do_not_leave_them():
    drawn = [draw(KVASIR, 0, k, 0) for k in range(400)]

    def spans(values, low, high):
        assert low <= min(values) < low + 0.03 * (high - low)
        assert high >= max(values) > high - 0.03 * (high - low)

    spans([c.rotation for c in drawn], -30, 30)
    spans([c.shear for c in drawn], -0.05, 0.05)
    spans([c.brightness for c in drawn], 0.8, 1.2)
    spans([c.colour for c in drawn], -20, 20)
    for axis in (0, 1):
        spans([c.shift[axis] for c in drawn], -0.1, 0.1)
        spans([c.zoom[axis] for c in drawn], 0.95, 1.05)
        assert 0.4 < np.mean([c.flip[axis] for c in drawn]) < 0.6


def test_chest_copies_are_not_flipped_nor_recoloured():
    for k in range(50):
        change = draw(CHEST, 0, k, 0)
        assert change.flip == (False, False)
        assert (change.brightness, change.colour) == (1.0, 0.0)


def test_a_draw_differs_by_seed_image_and_copy():
    drawn = [draw(KVASIR, s, i, k) for s in range(3) for i in range(3) for k in range(3)]
    assert len(set(drawn)) == 27


def test_a_range_of_zero_does_not_move_the_other_draws():
    without = draw(dataclasses.replace(KVASIR, rotation=0, flip_horizontal=False), 0, 1, 2)
    full = draw(KVASIR, 0, 1, 2)
    assert without == dataclasses.replace(full, rotation=0, flip=(False, full.flip[1]))


def test_no_images_give_none():
    images, masks = augment(np.zeros((0, 8, 8), np.uint8), np.zeros((0, 8, 8), np.uint8), [])
    assert images.shape == masks.shape == (0, 8, 8)


@pytest.mark.parametrize(
    ("wrong", "rule"),
    [
        ({"rotation": -1}, "rotation ≥ 0"),
        ({"zoom": 1.0}, "zoom below 1"),
        ({"brightness": (1.2, 0.8)}, "low, high"),
        ({"shift": float("nan")}, "shift ≥ 0"),
    ],
)
def test_wrong_ranges(wrong, rule):
    with pytest.raises(ValueError, match=rule):
        Augmentation(**wrong)
