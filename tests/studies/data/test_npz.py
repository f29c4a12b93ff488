import io
import zipfile

import numpy as np
import pytest
from by_name import check, open_images
from PIL import Image

from tensorprojection.studies.data import read
from tensorprojection.studies.data.read import load_npz
from tensorprojection.studies.errors import StudyError

N = 9


def plain(n=N, size=16):
    draw = np.random.default_rng(0)
    return {
        "images": draw.integers(0, 256, (n, size, size), dtype=np.uint8),
        "labels": (np.arange(n) % 4).astype(np.uint8),
        "patient_ids": np.arange(n) // 2,
        "file_names": np.array([f"{i}.jpeg" for i in range(n)]),
        "class_names": np.array(["NORMAL", "CNV", "DME", "DRUSEN"]),
    }


def pairs(n=N, size=16):
    draw = np.random.default_rng(0)
    masks = np.zeros((n, size, size), np.uint8)
    masks[:, 4:12, 3:9] = 1
    return {
        "images": draw.integers(0, 256, (n, size, size, 3), dtype=np.uint8),
        "masks": masks,
        "file_names": np.array([f"{i}.jpg" for i in range(n)]),
    }


@pytest.fixture
def stored(tmp_path):
    def store(arrays, study="oct", size=16, **options):
        np.savez(tmp_path / "a.npz", **arrays)
        return open_images(study, tmp_path / "a.npz", size=size, **options).images

    return store


def test_plain(stored):
    arrays = plain()
    images = stored(arrays)
    np.testing.assert_array_equal(images.images, arrays["images"])
    np.testing.assert_array_equal(images.labels, arrays["labels"])
    np.testing.assert_array_equal(images.groups, arrays["patient_ids"])
    np.testing.assert_array_equal(images.names, arrays["file_names"])
    assert images.class_names == ("NORMAL", "CNV", "DME", "DRUSEN")
    assert images.parts is None


def test_labels_follow_the_names_of_the_classes(stored):
    names = np.array(["DRUSEN", "DME", "CNV", "NORMAL"])
    images = stored(plain() | {"class_names": names})
    assert images.class_names == ("NORMAL", "CNV", "DME", "DRUSEN")
    np.testing.assert_array_equal(images.labels, 3 - plain()["labels"])


@pytest.mark.parametrize("dtype", [bool, np.int64, np.uint16])
def test_masks_of_other_types(stored, dtype):
    arrays = pairs()
    images = stored(arrays | {"masks": arrays["masks"].astype(dtype)}, "kvasir")
    np.testing.assert_array_equal(images.masks, arrays["masks"])
    if dtype is not bool:
        with pytest.raises(StudyError, match="masks of values from 0 to 255"):
            stored(arrays | {"masks": 256 * arrays["masks"].astype(dtype)}, "kvasir")


def medmnist(classes=4, channels=()):
    draw = np.random.default_rng(0)
    return {
        f"{part}_{what}": array
        for part, n in (("train", 6), ("val", 3), ("test", 5))
        for what, array in (
            ("images", draw.integers(0, 256, (n, 28, 28, *channels), dtype=np.uint8)),
            ("labels", (np.arange(n, dtype=np.uint8) % classes)[:, None]),
        )
    }


def test_medmnist(stored):
    arrays = medmnist()
    images = stored(arrays, size=28)
    np.testing.assert_array_equal(images.images[6:9], arrays["val_images"])
    found = [images.class_names[label] for label in images.labels]
    names = ("CNV", "DME", "DRUSEN", "NORMAL")
    assert found == [names[k % 4] for n in (6, 3, 5) for k in range(n)]
    assert images.parts.tolist() == ["train"] * 6 + ["val"] * 3 + ["test"] * 5
    assert stored(medmnist(channels=(3,)), size=28).images.shape == (14, 28, 28)


@pytest.mark.parametrize("classes", [1, 2, 3, 5, 9])
def test_medmnist_of_other_classes(stored, classes):
    """BreastMNIST and PneumoniaMNIST have two, and would train as if they were OCT images."""
    with pytest.raises(StudyError, match=r"got none of|labels from 0 to 3, got 4"):
        stored(medmnist(classes), "oct")
    with pytest.raises(StudyError, match="class_names, got images, labels, parts"):
        stored(medmnist(), "chest")


def test_only_medmnists_own_layout_may_leave_the_classes_out(stored):
    arrays = plain() | {"parts": np.repeat(["train", "val", "test"], 3)}
    del arrays["class_names"]
    with pytest.raises(StudyError, match="class_names, got images"):
        stored(arrays)


def test_medmnist_without_labels(stored):
    arrays = medmnist()
    del arrays["val_labels"]
    with pytest.raises(StudyError, match="labels of type int or uint and shape"):
        stored(arrays)


def test_other_sizes_are_resized_alike(stored):
    arrays = plain()
    images = stored(arrays, size=10)
    for row in (0, 8):
        image = Image.fromarray(arrays["images"][row])
        expected = np.asarray(image.resize((10, 10), Image.Resampling.BILINEAR))
        np.testing.assert_array_equal(images.images[row], expected)


def test_gray_and_rgb_as_the_study_needs(stored):
    gray = plain()["images"]
    rgb = np.repeat(gray[..., None], 3, axis=3)
    np.testing.assert_array_equal(stored(plain() | {"images": rgb}).images, gray)
    np.testing.assert_array_equal(stored(pairs() | {"images": gray}, "kvasir").images, rgb)


@pytest.mark.parametrize("scale", [1, 255])
def test_masks_of_1_or_255(stored, scale):
    arrays = pairs()
    images = stored(arrays | {"masks": arrays["masks"] * np.uint8(scale)}, "kvasir")
    np.testing.assert_array_equal(images.masks, arrays["masks"])
    assert images.labels is None
    smaller = stored(arrays | {"masks": arrays["masks"] * np.uint8(scale)}, "kvasir", size=8)
    assert set(np.unique(smaller.masks)) == {0, 1}


@pytest.mark.parametrize("values", [(0, 7), (1, 255)])
def test_other_masks(stored, values):
    arrays = pairs()
    masks = np.where(arrays["masks"], values[1], values[0]).astype(np.uint8)
    with pytest.raises(StudyError, match="a mask has two, 0 and 255 or 0 and 1"):
        stored(arrays | {"masks": masks}, "kvasir")


def test_texts_as_patients(stored):
    ids = np.array(["p9", "p10", "p9", "a", "a", "b", "p10", "p10", "µ"])
    groups = stored(plain() | {"patient_ids": ids}).groups
    assert groups.dtype == np.int64
    same = groups[:, None] == groups
    np.testing.assert_array_equal(same, ids[:, None] == ids)


def test_parts_have_the_names_of_folders(stored):
    given = np.array(
        ["training", "Train", "train", "val", "valid", "validation", "test"] + 2 * ["TEST"]
    )
    parts = stored(plain() | {"parts": given}).parts
    assert parts.tolist() == ["train"] * 3 + ["val"] * 3 + ["test"] * 3


def test_a_count_draws_in_proportion(stored):
    arrays = plain(40)
    images = stored(arrays, count=12, seed=1)
    assert np.bincount(images.labels).tolist() == [3, 3, 3, 3]
    rows = [int(name.removesuffix(".jpeg")) for name in images.names]
    assert rows == sorted(rows)
    np.testing.assert_array_equal(images.images, arrays["images"][rows])
    assert len(stored(arrays, count=100)) == 40


def test_study_is_guessed(tmp_path):
    def guessed(arrays):
        np.savez(tmp_path / "a.npz", **arrays)
        return check(tmp_path / "a.npz").title.split()[1].rstrip(",")

    assert guessed(plain()) == "oct"
    assert guessed(pairs()) == "kvasir"
    names = np.array(["Normal", "Lung Opacity", "COVID", "Viral Pneumonia"])
    assert guessed(plain() | {"class_names": names}) == "chest"
    with pytest.raises(StudyError, match=r"the classes NORMAL, .* got a, b, c, d"):
        guessed(plain() | {"class_names": np.array(list("abcd"))})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"images": None}, "an array images, got labels, "),
        ({"labels": None}, "Expected in .* labels, got images, "),
        ({"images": plain()["images"] / 255}, "images of type uint8 .*, got float64"),
        ({"images": np.zeros((N, 16), np.uint8)}, r"shape \(N, H, W\) or \(N, H, W, 3\)"),
        ({"images": np.zeros((0, 16, 16), np.uint8)}, "at least one image"),
        ({"labels": np.arange(5)}, r"labels of type int or uint and shape \(9,\), got .*\(5,\)"),
        ({"labels": np.zeros(N)}, "labels of type int .*, got float64"),
        ({"labels": np.arange(N)}, "labels from 0 to 3, got 4"),
        ({"labels": np.full(N, -1)}, "labels from 0 to 3, got -1"),
        ({"labels": np.zeros(N, int)}, "images of NORMAL, .* got none of CNV, DME, DRUSEN"),
        ({"labels": np.arange(N) % 3}, "got none of DRUSEN"),
        ({"class_names": None}, "Expected in .* class_names, got images, "),
        ({"class_names": np.array("NORMAL")}, r"class_names of type str .* got <U6, \(\)"),
        ({"class_names": np.array([b"NORMAL", b"CNV", b"DME", b"DRUSEN"])}, r"str .* got \|S6"),
        ({"class_names": np.arange(4)}, "class_names of type str .* got int64"),
        ({"class_names": np.array(list("abcdefghi"))}, "classes NORMAL, .* got a, b, c, d, e"),
        ({"class_names": np.array(["NORMAL", "CNV", "DME", "DME"])}, "got NORMAL, CNV, DME, DME"),
        ({"parts": np.array(["train"] * 8 + ["holdout"])}, "parts of train, .* got 'holdout'"),
        ({"patient_ids": np.array(["a"] * 8 + [""])}, "a patient for every image, got none of 8"),
        ({"patient_ids": np.arange(3)}, r"patient_ids of .* shape \(9,\), got int64, \(3,\)"),
        ({"file_names": np.arange(N)}, "file_names of type str"),
    ],
)
def test_wrong_arrays(stored, change, message):
    arrays = {name: array for name, array in (plain() | change).items() if array is not None}
    with pytest.raises(StudyError, match=message):
        stored(arrays)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"masks": None}, "Expected in .* masks, got images"),
        ({"masks": np.zeros((N, 8, 8), np.uint8)}, r"masks of .* shape \(9, 16, 16\)"),
        ({"masks": np.full((N, 16, 16), 0.5)}, "masks of type int or uint or bool"),
    ],
)
def test_wrong_masks(stored, change, message):
    arrays = {name: array for name, array in (pairs() | change).items() if array is not None}
    with pytest.raises(StudyError, match=message):
        stored(arrays, "kvasir")


class Trap:
    """What a harmful file holds: unpickling it runs code."""

    def __reduce__(self):
        return (pytest.fail, ("was unpickled",))


def test_objects_are_never_unpickled(stored):
    trap = np.array([Trap()] * N, dtype=object)
    with pytest.raises(StudyError, match="Object arrays cannot be loaded") as caught:
        stored(plain() | {"labels": trap})
    assert "\n" not in str(caught.value)


def npz_of(path, name, content):
    with zipfile.ZipFile(path, "w") as file:
        file.writestr(name, content)
    return path


def test_a_shape_that_the_file_does_not_hold(tmp_path):
    header = io.BytesIO()
    claimed = {"descr": "|u1", "fortran_order": False, "shape": (10**6, 10**5, 10**4)}
    np.lib.format.write_array_header_1_0(header, claimed)
    path = npz_of(tmp_path / "a.npz", "images.npy", header.getvalue() + bytes(100))
    with pytest.raises(StudyError, match=r"Unable to allocate"):
        load_npz(path)


def test_more_than_memory_holds(tmp_path, monkeypatch):
    monkeypatch.setattr(read, "memory_bytes", lambda: 2000)
    np.savez(tmp_path / "a.npz", **plain())
    with pytest.raises(StudyError, match=r"a.npz holds .* GB of arrays, but .* Give a folder"):
        check(tmp_path / "a.npz")


def test_corrupted_npz_files(tmp_path):
    path = tmp_path / "a.npz"
    path.write_bytes(b"PK nonsense")
    with pytest.raises(StudyError, match=r"Could not read .*a.npz as .npz: .*zip"):
        check(path)
    with pytest.raises(StudyError, match=r"images of shape .*, got \(\)"):
        check(npz_of(path, "images.npy", b"nonsense"))
    np.savez(path, **plain())
    content = bytearray(path.read_bytes())
    content[content.index(plain()["images"].tobytes()) + 50] ^= 255
    path.write_bytes(content)
    with pytest.raises(StudyError, match="CRC"):
        load_npz(path)


def test_any_corrupted_byte_of_a_header_is_refused_in_one_line(tmp_path):
    path = tmp_path / "a.npz"
    np.savez(path, **plain(size=100))  # so large that its header is parsed before its checksum
    content = path.read_bytes()
    begin = content.index(b"\x93NUMPY")
    for place in range(begin, begin + 80):
        for byte in b"({":
            path.write_bytes(content[:place] + bytes([byte]) + content[place + 1 :])
            if byte != content[place]:
                with pytest.raises(StudyError, match=r"a\.npz"):
                    load_npz(path)


def test_files_in_place_of_medmnists_arrays(tmp_path):
    path = tmp_path / "a.npz"
    np.savez(path, train_images=np.zeros((4, 8, 8), np.uint8))
    with zipfile.ZipFile(path, "a") as file:
        file.writestr("train_labels.npy", b"nonsense")
    with pytest.raises(StudyError, match="Could not read"):
        load_npz(path)


@pytest.mark.realdata
@pytest.mark.parametrize(
    ("name", "study", "size", "expected"),
    [
        ("oct_96.npz", "oct", 96, "labels: NORMAL 690, CNV 687, DME 689, DRUSEN 682, groups"),
        ("chest_160.npz", "chest", 160, "Normal 400, Lung Opacity 400, COVID 400, Viral Pn"),
        ("polyp_192.npz", "kvasir", 192, "800 images of 192 × 192 × 3, masks, names"),
    ],
)
def test_real_files(real_data, name, study, size, expected):
    path = real_data(name)
    images = open_images(study, path, size=size).images
    assert expected in repr(images)
    with np.load(path, allow_pickle=False) as file:
        np.testing.assert_array_equal(images.images, file["images"])
        if study == "kvasir":
            np.testing.assert_array_equal(images.masks, file["masks"])
