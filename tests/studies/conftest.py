"""Fixtures of the studies: the real images, and small folders like Kaggle's."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from PIL import Image


@pytest.fixture(scope="module", autouse=True)
def own_cache(tmp_path_factory) -> Iterator[None]:
    """One cache per file, whose runs mostly share their images; never the user's own."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TENSORPROJECTION_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture
def real_data() -> Callable[[str], Path]:
    """``real_data("oct_96.npz")``: the file's path; the test is skipped where it is absent."""

    def find(name: str) -> Path:
        given = os.environ.get("TENSORPROJECTION_DATA")
        beside = Path(__file__).resolve().parents[2].parent / "shared" / "data"
        path = (Path(given) if given else beside) / name
        if not path.is_file():
            pytest.skip(f"no real images: {name} is not in {path.parent}")
        return path

    return find


@pytest.fixture
def picture() -> Callable[..., Path]:
    """``picture(path, mode="L", shape=(w, h), seed=0)`` writes a smooth picture in any format."""

    def write(path, mode="L", shape=(40, 30), seed=0, **options):
        noise = np.random.default_rng(seed).integers(0, 256, (5, 6, 3), dtype=np.uint8)
        image = Image.fromarray(noise).resize(shape, Image.Resampling.BICUBIC).convert(mode)
        path.parent.mkdir(parents=True, exist_ok=True)
        image.save(path, **options)
        return path

    return write


@pytest.fixture
def oct_folder(tmp_path, picture) -> Path:
    """The OCT layout: 6 training, 1 validation and 2 test images per class, 3 per patient."""
    root = tmp_path / "kermany"
    number = 0
    for part, count in (("train", 6), ("val", 1), ("test", 2)):
        for name in ("CNV", "DME", "DRUSEN", "NORMAL"):
            for i in range(count):
                patient = 1000 + number // 3
                file = f"{name}-{patient}-{i}.jpeg"
                picture(root / "OCT2017 " / part / name / file, seed=number)
                number += 1
    return root


@pytest.fixture
def chest_folder(tmp_path, picture) -> Path:
    root = tmp_path / "chest"
    top = root / "COVID-19_Radiography_Dataset"
    for k, name in enumerate(("COVID", "Lung_Opacity", "Normal", "Viral Pneumonia")):
        for i in range(3 + k):
            picture(top / name / "images" / f"{name}-{i}.png", seed=10 * k + i)
            picture(top / name / "masks" / f"{name}-{i}.png", seed=100)
    return root


@pytest.fixture
def kvasir_folder(tmp_path, picture) -> Path:
    root = tmp_path / "kvasir"
    for i in range(5):
        picture(root / "Kvasir-SEG/images" / f"c{i}.jpg", mode="RGB", seed=i)
        mask = np.zeros((30, 40), np.uint8)
        mask[8:22, 10 : 16 + 4 * i] = 255
        path = root / "Kvasir-SEG/masks" / f"c{i}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(mask).save(path, quality=60)
    return root
