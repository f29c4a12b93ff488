"""Array files that are filled some rows at a time."""

import os
import resource
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from by_name import open_images

from tensorprojection.studies.data import rows
from tensorprojection.studies.errors import StudyError


def test_rows_are_written_where_they_belong(tmp_path):
    path = tmp_path / "rows.npy"
    rows.create(path, (5, 2), np.float32)
    rows.write(path, 3, np.float32([[1, 2], [3, 4]]))
    np.testing.assert_array_equal(np.load(path), [[0, 0], [0, 0], [0, 0], [1, 2], [3, 4]])


@pytest.mark.parametrize(
    "wrong", [np.zeros((3, 2), np.float32), np.zeros((1, 3), np.float32), np.zeros((1, 2))]
)
def test_rows_that_do_not_fit(tmp_path, wrong):
    path = tmp_path / "rows.npy"
    rows.create(path, (5, 2), np.float32)
    with pytest.raises(ValueError, match=r"Expected rows of an array of float32, \(5, 2\)"):
        rows.write(path, 3, wrong)


@pytest.mark.parametrize("dtype", [np.uint8, np.float32])
def test_threads_may_write_at_once(tmp_path, dtype):
    path, whole = tmp_path / "rows.npy", np.arange(300 * 6).reshape(300, 2, 3).astype(dtype)
    rows.create(path, whole.shape, dtype)
    with rows.RowFile(path) as file, ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda i: file.write(i, whole[i : i + 1]), range(300)))
    np.testing.assert_array_equal(np.load(path), whole)


def test_no_rows(tmp_path):
    rows.create(tmp_path / "rows.npy", (0, 4), np.uint8)
    assert np.load(tmp_path / "rows.npy").shape == (0, 4)


@pytest.mark.skipif(not hasattr(os, "posix_fallocate"), reason="space cannot be reserved here")
def test_the_space_is_reserved_before_the_first_row(tmp_path):
    rows.create(tmp_path / "rows.npy", (1000, 1000), np.uint8)
    assert (tmp_path / "rows.npy").stat().st_blocks * 512 >= 10**6


def fail(*_):
    raise OSError(rows.CANNOT_RESERVE[0], "Operation not supported")


def test_a_file_system_that_cannot_reserve(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "posix_fallocate", fail, raising=False)
    rows.create(tmp_path / "rows.npy", (10, 10), np.uint8)
    assert np.load(tmp_path / "rows.npy").shape == (10, 10)


def test_a_full_disk_is_said_before(tmp_path):
    with pytest.raises(StudyError, match="GB free for the cache"):
        rows.create(tmp_path / "rows.npy", (10**9, 10**6, 10**6), np.uint8)
    assert not (tmp_path / "rows.npy").exists()


@pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning")
@pytest.mark.parametrize("reserves", [True, False])
def test_a_disk_that_fills_up_while_a_folder_is_cached(kvasir_folder, tmp_path, reserves):
    """A limit on the size of files stands in for the disk. A memory map would be a bus error."""
    said, cache = tmp_path / "said", tmp_path / "cache"
    child = os.fork()
    if child == 0:
        try:
            if not reserves:
                os.posix_fallocate = fail
                os.truncate = lambda *_: None
            size = 30_000  # of 5 · 64 · 64 · 3 bytes
            resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))
            open_images("kvasir", kvasir_folder, size=64, cache=cache)
        except StudyError as error:
            said.write_text(str(error))
        finally:
            os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0  # and no signal
    assert "File too large" in said.read_text()
    assert said.read_text().startswith("Could not make the cache")
    assert [path for path in cache.iterdir() if path.is_dir()] == []
