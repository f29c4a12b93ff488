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
from tensorprojection.studies.data.phantoms import polyp
from tensorprojection.studies.kvasir import CHANGES as KVASIR


@pytest.fixture(scope="module")
def scenes():
    return polyp.make(8, size=64)


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


@SHAPES
@pytest.mark.parametrize(("right", "down"), [(3, 0), (0, 5), (-4, 2), (-1, -1), (40, 0)])
def test_a_shift_by_whole_pixels_repeats_the_border(shape, right, down):
    image = noise(*shape)
    height, width = shape[:2]
    rows = np.clip(np.arange(height) - down, 0, height - 1)
    columns = np.clip(np.arange(width) - right, 0, width - 1)
    got = one(image, Change(shift=(right / width, down / height)))
    np.testing.assert_array_equal(got, image[rows][:, columns])


@pytest.mark.parametrize("shape", [(32, 32), (32, 32, 3), (33, 33)])
@pytest.mark.parametrize("quarters", [1, 2, 3])
def test_a_quarter_turn_is_rot90(shape, quarters):
    image, mask = noise(*shape), noise(*shape[:2]) & 1
    got, got_mask = augment(image[None], mask[None], [Change(rotation=90 * quarters)])
    np.testing.assert_array_equal(got[0], np.rot90(image, quarters))
    np.testing.assert_array_equal(got_mask[0], np.rot90(mask, quarters))


@SHAPES
@pytest.mark.parametrize(
    ("flip", "mirrored"),
    [
        ((True, False), lambda x: x[:, ::-1]),
        ((False, True), lambda x: x[::-1]),
        ((True, True), lambda x: x[::-1, ::-1]),
    ],
)
def test_flips(shape, flip, mirrored):
    image = noise(*shape)
    np.testing.assert_array_equal(one(image, Change(flip=flip)), mirrored(image))


def test_zoom_by_two_shows_the_middle_half():
    x = np.arange(32)
    ramp = np.broadcast_to((4 * x).astype(np.uint8), (32, 32))
    middle = 4 * ((x - 15.5) / 2 + 15.5)
    np.testing.assert_array_equal(one(ramp, Change(zoom=(2, 1)))[7], np.rint(middle))
    np.testing.assert_array_equal(one(ramp, Change(zoom=(1, 2))), ramp)


def test_shear_moves_what_lies_below_to_the_right():
    image = np.zeros((33, 65), np.uint8)
    image[:, 32] = 255
    got = one(image, Change(shear=np.pi / 4))
    np.testing.assert_array_equal(got.argmax(1), 32 + np.arange(33) - 16)


def test_the_order_is_rotate_then_shift():
    image = noise(32, 32)
    got = one(image, Change(rotation=90, shift=(0.25, 0)))
    np.testing.assert_array_equal(got[:, 8:], np.rot90(image)[:, :-8])


def test_image_and_mask_move_together(scenes):
    masks = scenes.masks
    changes = [
        dataclasses.replace(draw(KVASIR, 3, k, 0), brightness=1.0, colour=(0, 0, 0))
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
    plain = [dataclasses.replace(c, brightness=1.0, colour=(0, 0, 0)) for c in changes]
    images, masks = augment(scenes.images, scenes.masks, changes)
    plain_images, plain_masks = augment(scenes.images, scenes.masks, plain)
    assert set(np.unique(masks)) == {0, 1}
    np.testing.assert_array_equal(masks, plain_masks)
    assert (images != plain_images).mean() > 0.5


def test_brightness_and_colour_are_rounded_and_clipped():
    image = noise(16, 16, 3)
    got = one(image, Change(brightness=1.2, colour=(20, -20, 0.5)))
    levels = image.astype(np.float32) * np.float32(1.2) + np.float32([20, -20, 0.5])
    np.testing.assert_array_equal(got, np.clip(np.rint(levels), 0, 255))
    assert {0, 255} <= set(got.ravel())


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
    for axis in (0, 1):
        spans([c.shift[axis] for c in drawn], -0.1, 0.1)
        spans([c.zoom[axis] for c in drawn], 0.95, 1.05)
        assert 0.4 < np.mean([c.flip[axis] for c in drawn]) < 0.6
    for channel in range(3):
        spans([c.colour[channel] for c in drawn], -20, 20)


def test_chest_copies_are_not_flipped_nor_recoloured():
    for k in range(50):
        change = draw(CHEST, 0, k, 0)
        assert change.flip == (False, False)
        assert (change.brightness, change.colour) == (1.0, (0.0, 0.0, 0.0))


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
