import io
import os
import tempfile
import time
import warnings

import numpy as np
import pytest
from by_name import find, kind_of
from PIL import Image, ImageFile

from tensorprojection.studies.data import decode
from tensorprojection.studies.data.decode import (
    UnreadableError,
    binary,
    decode_into,
    fit,
    in_threads,
    to_mode,
)
from tensorprojection.studies.errors import StudyError


def antialiased(n_in, n_out):
    """Weights of the triangle filter, widened by the scale: an oracle for fit()."""
    scale = n_in / n_out
    centre = (np.arange(n_out) + 0.5) * scale
    away = np.abs(np.arange(n_in) + 0.5 - centre[:, None]) / max(scale, 1)
    weights = np.maximum(1 - away, 0)
    return weights / weights.sum(axis=1, keepdims=True)


def open_image(content):
    """The image of a file with this content."""
    with tempfile.NamedTemporaryFile() as file:
        file.write(content)
        file.flush()
        return decode.open_image(file.name)


def fit_mask(mask, size):
    return fit(binary(mask), size, "L") > 127


def encoded(image, kind="PNG", **options):
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def test_fit_is_bilinear_and_antialiased():
    pixels = np.random.default_rng(0).integers(0, 256, (62, 90), dtype=np.uint8)
    expected = antialiased(62, 16) @ pixels @ antialiased(90, 16).T
    got = fit(Image.fromarray(pixels), 16, "L")
    assert got.dtype == np.uint8
    assert np.abs(got - expected).max() <= 1.5  # Pillow rounds after each direction


def test_gray_to_rgb_and_back():
    pixels = np.random.default_rng(0).integers(0, 256, (8, 8), dtype=np.uint8)
    rgb = fit(Image.fromarray(pixels), 8, "RGB")
    np.testing.assert_array_equal(rgb, np.repeat(pixels[..., None], 3, axis=2))
    np.testing.assert_array_equal(fit(Image.fromarray(rgb), 8, "L"), pixels)


def test_16_bits_are_scaled():
    wide = np.array([[0, 257, 25700, 65535]], np.uint16)
    image = open_image(encoded(Image.fromarray(wide)))
    np.testing.assert_array_equal(np.asarray(to_mode(image, "L")), [[0, 1, 100, 255]])


def test_beyond_16_bits_is_refused():
    with pytest.raises(UnreadableError, match="70000, beyond 16 bits"):
        to_mode(Image.fromarray(np.array([[70000]], np.int32)), "L")
    with pytest.raises(UnreadableError, match="floating point"):
        to_mode(Image.fromarray(np.array([[0.5]], np.float32)), "L")


def test_palette_with_transparency():
    image = Image.fromarray(np.array([[0, 1]], np.uint8), mode=None).convert("P")
    image.putpalette([10, 20, 30, 200, 100, 50])
    image = open_image(encoded(image, transparency=b"\x00\xff"))
    assert np.asarray(to_mode(image, "RGB")).tolist() == [[[10, 20, 30], [200, 100, 50]]]


def test_orientation_notes_are_not_applied():
    image = Image.fromarray(np.zeros((10, 20), np.uint8))
    exif = Image.Exif()
    exif[0x0112] = 6  # "turn by 90 degrees"
    assert open_image(encoded(image, "JPEG", exif=exif)).size == (20, 10)


def test_masks_are_binary_before_and_after():
    mask = np.zeros((40, 40), np.uint8)
    mask[:, 19:] = 255  # not at a border of JPEG's blocks
    noisy = open_image(encoded(Image.fromarray(mask), "JPEG", quality=30))
    assert len(np.unique(np.asarray(noisy))) > 2
    got = fit_mask(noisy, 40)
    np.testing.assert_array_equal(got, mask > 0)


@pytest.mark.parametrize("highest", [255, 1023, 4095, 16383])
def test_fewer_bits_in_16_are_refused(highest):
    """They would all be nearly black: 12 bits become the grey levels 0 to 15."""
    wide = np.linspace(0, highest, 64).astype(np.uint16).reshape(8, 8)
    with pytest.raises(UnreadableError, match=r"16 bits and values up to .* only.*such as 12"):
        to_mode(Image.fromarray(wide), "L")
    bright = Image.fromarray(np.where(wide == highest, 65535, wide).astype(np.uint16))
    assert np.asarray(to_mode(bright, "L")).max() == 255


def test_black_of_16_bits_is_black():
    assert np.asarray(to_mode(Image.fromarray(np.zeros((8, 8), np.uint16)), "L")).max() == 0


@pytest.mark.parametrize("top", [*range(2, 18), 127])
def test_masks_of_other_values_are_refused(top):
    mask = np.zeros((8, 8), np.uint8)
    mask[2:5] = top
    with pytest.raises(
        UnreadableError, match=f"has the values 0, {top}: a mask has two, 0 and 255"
    ):
        fit_mask(Image.fromarray(mask), 8)


@pytest.mark.parametrize("top", [1, 255, 65535])
def test_masks_of_16_bits(top):
    mask = np.zeros((8, 8), np.uint16)
    mask[2:5] = top
    np.testing.assert_array_equal(fit_mask(Image.fromarray(mask), 8), mask > 0)
    mask[0, 0] = 7
    with pytest.raises(UnreadableError, match=r"has the values 0, \d+, \d+: a mask has two"):
        fit_mask(Image.fromarray(mask), 8)


@pytest.mark.parametrize("quality", [30, 75, 95])
def test_an_empty_mask_stays_empty_as_jpeg(quality):
    """So no leeway is needed for noise in one."""
    empty = Image.fromarray(np.zeros((37, 53), np.uint8))
    for mode in ("L", "RGB"):
        again = open_image(encoded(empty.convert(mode), "JPEG", quality=quality))
        assert fit_mask(again, 16).max() == 0


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"", "is empty"),
        (b"not an image", "is not an image"),
        (encoded(Image.effect_noise((64, 64), 50), "JPEG")[:-200], "cannot be read"),
        (encoded(Image.effect_noise((64, 64), 50), "PNG")[:-200], "cannot be read"),
    ],
)
def test_files_that_are_not_images(content, why):
    with pytest.raises(UnreadableError, match=why):
        open_image(content)


def test_truncated_files_stay_refused():
    assert ImageFile.LOAD_TRUNCATED_IMAGES is False


@pytest.mark.parametrize("factor", [1.5, 3])  # Pillow warns of the first and refuses the second
def test_decompression_bombs(monkeypatch, tmp_path, oct_folder, factor):
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", int(40 * 30 / factor))
    with pytest.raises(StudyError, match="claims more pixels than can be right"):
        decode_into(tmp_path, find("oct", oct_folder), kind_of("oct"), 8)


def test_rows_follow_the_items(tmp_path, oct_folder):
    items = find("oct", oct_folder)
    kept, unreadable = decode_into(tmp_path, items, kind_of("oct"), 12)
    assert (kept, unreadable) == (items, [])
    images = np.load(tmp_path / "images.npy", mmap_mode="r")
    assert images.shape == (36, 12, 12)
    for row in (0, 17, 35):
        with Image.open(items[row].image) as image:
            np.testing.assert_array_equal(images[row], fit(image, 12, "L"))


def test_the_error_names_a_corrupted_file_and_the_remedy(tmp_path, oct_folder):
    items = find("oct", oct_folder)
    path = items[7].image
    open(path, "wb").close()
    with pytest.raises(StudyError, match=r"-\d\.jpeg is empty\. .*`skip_unreadable`") as caught:
        decode_into(tmp_path, items, kind_of("oct"), 12)
    assert path in str(caught.value)
    kept, unreadable = decode_into(tmp_path, items, kind_of("oct"), 12, skip_unreadable=True)
    assert kept == [*items[:7], *items[8:]]
    assert unreadable == [items[7].name]
    images = np.load(tmp_path / "images.npy")
    assert images.shape == (35, 12, 12)
    with Image.open(items[8].image) as image:
        np.testing.assert_array_equal(images[7], fit(image, 12, "L"))


def test_nothing_readable(tmp_path, kvasir_folder):
    for path in kvasir_folder.rglob("images/*.jpg"):
        path.write_bytes(b"")
    items = find("kvasir", kvasir_folder)
    with pytest.raises(StudyError, match="at least one readable image, got none of 5"):
        decode_into(tmp_path, items, kind_of("kvasir"), 8, skip_unreadable=True)


def test_kvasir_masks(tmp_path, kvasir_folder):
    items = find("kvasir", kvasir_folder)
    decode_into(tmp_path, items, kind_of("kvasir"), 20)
    masks = np.load(tmp_path / "masks.npy")
    assert np.load(tmp_path / "images.npy").shape == (5, 20, 20, 3)
    assert set(np.unique(masks)) == {0, 1}
    assert (np.diff(masks.sum(axis=(1, 2), dtype=np.int64)) > 0).all()


def damage_missing(folder, picture):
    (folder / "Kvasir-SEG/masks/c2.jpg").unlink()


def damage_size(folder, picture):
    picture(folder / "Kvasir-SEG/masks/c2.jpg", shape=(20, 30))


def damage_mask(folder, picture):
    (folder / "Kvasir-SEG/masks/c2.jpg").write_bytes(b"nonsense")


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (damage_missing, "images.c2.jpg has no mask of the same name"),
        (damage_size, "masks.c2.jpg is 20 × 30, its image 40 × 30: expected a mask of the image's"),
        (damage_mask, "masks.c2.jpg is not an image"),
    ],
)
def test_a_pair_is_left_out_as_a_whole(tmp_path, kvasir_folder, picture, damage, message):
    damage(kvasir_folder, picture)
    items = find("kvasir", kvasir_folder)
    with pytest.raises(StudyError, match=message):
        decode_into(tmp_path, items, kind_of("kvasir"), 20)
    kept, unreadable = decode_into(tmp_path, items, kind_of("kvasir"), 20, skip_unreadable=True)
    assert kept == [*items[:2], *items[3:]]
    assert unreadable == [items[2].name]
    assert np.load(tmp_path / "images.npy").shape[0] == np.load(tmp_path / "masks.npy").shape[0]


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no pipes here")
def test_a_pipe_and_an_endless_device(tmp_path, oct_folder):
    """The first would wait for ever, the second fill the memory."""
    items = find("oct", oct_folder)
    for row in (3, 9):
        os.unlink(items[row].image)
    os.mkfifo(items[3].image)
    os.symlink("/dev/zero", items[9].image)
    with pytest.raises(StudyError, match=r"cannot be read \(not a regular file"):
        decode_into(tmp_path, items, kind_of("oct"), 12)
    kept, unreadable = decode_into(tmp_path, items, kind_of("oct"), 12, skip_unreadable=True)
    assert len(kept) == 34
    assert unreadable == [items[3].name, items[9].name]


def test_the_first_error_stops_the_rest():
    done = []

    def work(row):
        if row == 0:
            raise StudyError("first")
        time.sleep(0.001)  # so that the pool cannot be done before the error is seen
        done.append(row)

    with pytest.raises(StudyError, match="first"):
        in_threads(work, 20_000, "working")
    assert len(done) < 10_000


def test_filters_of_warnings_are_restored():
    before = list(warnings.filters)
    in_threads(lambda row: None, 3, "working")
    assert list(warnings.filters) == before
