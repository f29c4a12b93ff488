"""A frozen backbone's features of images: computed once, and kept on disk.

The key is the images and the weights. The versions of torch and of the processor, which move the
last bits, are left out: features are not computed again for their sake.
"""

from __future__ import annotations

import os
import shutil
import zlib
from collections.abc import Callable, Iterator
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from ..data import rows as row_file
from ..data.cache import about, cached
from ..data.images import ImageSet
from ..data.stored import open_array
from ..errors import StudyError
from ..processes import process_pool
from .backbones import backbone, identity, preprocess

BATCH = 16  # the fastest of 8, 16, 32 and 64, for both backbones
BLOCK = 16 * BATCH  # images that are lost at most, for each worker, when it is stopped

Array = NDArray[np.float32]


def open_features(folder: Path) -> Array:
    """Features made before, in this folder; nothing is read yet."""
    return open_array(folder / "features.npy")


def features_folder(
    images: ImageSet,
    folder: Path,
    name: str,
    weights: Path | None = None,
    cache: Path | None = None,
    workers: int = 1,
    progress: Callable[[int, int], None] | None = None,
) -> Path:
    """The cache's folder with the features of all images.

    They are computed where the cache does not have them. A computation that is stopped goes on
    where it was, the next time. The number of workers does not change the result.

    Args:
        images: the images.
        folder: the cache's folder of ``images``; its name stands for their content.
        name: the backbone, of ``BACKBONES``.
        weights: the file of its weights; default: its own.
        cache: where caches go; default the user's.
        workers: processes; each uses one thread.
        progress: called with the number of images done and of all.
    """
    if not len(images):
        raise ValueError("Expected at least one image, got none.")
    if workers < 1:
        raise ValueError(f"Expected at least one worker, got {workers}.")

    def make(place: Path) -> None:
        # Beside the folder that is being made, which is emptied when its maker is killed.
        work = _Work(place.with_name(place.name.split(".")[0] + ".work"), len(images))
        _complete(work, images, name, weights, workers, progress)
        # The work stays until the folder has its name.
        try:
            os.link(work.file, place / "features.npy")
        except OSError:  # a file system without links
            shutil.copyfile(work.file, place / "features.npy")

    key = {"images": folder.name, "shape": images.images.shape, **identity(name, weights)}
    made = cached("features", key, make, cache, about(folder))
    shutil.rmtree(made.with_name(made.name + ".work"), ignore_errors=True)
    return made


class _Work:
    """The features so far, in a folder that outlives its process: an array, and marks of blocks."""

    def __init__(self, folder: Path, count: int) -> None:
        self.folder, self.count = folder, count
        self.file = folder / "features.npy"
        try:
            open_array(self.file)
        except StudyError:  # then marks, if there are any, speak of an array that is gone
            shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(exist_ok=True)

    def missing(self) -> list[tuple[int, int]]:
        """First and last + 1 of each block that is still to be computed."""
        ends = ((start, min(start + BLOCK, self.count)) for start in range(0, self.count, BLOCK))
        return [block for block in ends if not self._is_there(*block)]

    def add(self, start: int, values: Array) -> None:
        if not self.file.exists():
            # Under another name first: a file of this name has its header.
            row_file.create(self.folder / "new.npy", (self.count, *values.shape[1:]), np.float32)
            (self.folder / "new.npy").rename(self.file)
        row_file.write(self.file, start, values)
        with open(self.file, "r+b") as file:  # the mark must not reach the disk before the values
            os.fsync(file.fileno())
        self._mark(start, start + len(values)).write_text(str(zlib.crc32(values.tobytes())))

    def _is_there(self, start: int, end: int) -> bool:
        """Whether a block was computed, and is still as it was."""
        mark = self._mark(start, end)
        if not mark.exists():
            return False
        values = open_array(self.file)[start:end]
        return mark.read_text() == str(zlib.crc32(np.ascontiguousarray(values).tobytes()))

    def _mark(self, start: int, end: int) -> Path:
        return self.folder / f"done-{start}-{end}"


def _complete(
    work: _Work,
    images: ImageSet,
    name: str,
    weights: Path | None,
    workers: int,
    progress: Callable[[int, int], None] | None,
) -> None:
    missing = work.missing()
    done = len(images) - sum(end - start for start, end in missing)
    blocks = [images.images[start:end] for start, end in missing]
    with _computing(name, weights, min(workers, len(missing))) as compute:
        for (start, end), values in zip(missing, compute(blocks), strict=True):
            work.add(start, values)
            done += end - start
            if progress is not None:
                progress(done, len(images))


Compute = Callable[[list[NDArray[np.uint8]]], Iterator[Array]]


@contextmanager
def _computing(name: str, weights: Path | None, workers: int) -> Iterator[Compute]:
    """A function from blocks of images to their features, one after the other."""
    if workers == 0:
        yield lambda blocks: iter(())
    elif workers == 1:
        network, threads = backbone(name, weights), torch.get_num_threads()
        torch.set_num_threads(1)  # as in a worker: sums split among threads have other last bits
        try:
            yield lambda blocks: (run(network, name, block) for block in blocks)
        finally:
            torch.set_num_threads(threads)
    else:
        backbone(name, weights)  # here first, so that an error in the weights is a clear one
        try:
            with process_pool(workers, _start, name, weights) as pool_map:
                yield lambda blocks: pool_map(_run_in_worker, blocks)
        except BrokenProcessPool as error:
            raise StudyError(
                "A worker process ended before its time, perhaps for lack of memory. Run again "
                "with fewer workers: what was computed is kept."
            ) from error


def run(network: nn.Module, name: str, images: NDArray[np.uint8]) -> Array:
    """The network's features of these images, in batches of ``BATCH``."""
    with torch.inference_mode():
        parts = [
            network(preprocess(name, images[start : start + BATCH])).contiguous().numpy()
            for start in range(0, len(images), BATCH)
        ]
    return np.concatenate(parts)


_worker: tuple[nn.Module, str] | None = None  # what a worker process computes with


def _start(name: str, weights: Path | None) -> None:
    global _worker
    torch.set_num_threads(1)
    _worker = backbone(name, weights), name


def _run_in_worker(images: NDArray[np.uint8]) -> Array:
    assert _worker is not None
    return run(*_worker, images)
