"""Settings that a run's processes inherit from the one that starts them."""

import os

import pytest

from tensorprojection.studies.executors.local import memory_settings, settings_to_inherit

MEMORY = ("MALLOC_ARENA_MAX", "MALLOC_MMAP_MAX_", "MALLOC_TRIM_THRESHOLD_")


@pytest.fixture(autouse=True)
def nothing_set(monkeypatch):
    for name in MEMORY:
        monkeypatch.delenv(name, raising=False)


def test_processes_keep_the_memory_that_they_free():
    with settings_to_inherit():
        found = {name: os.environ[name] for name in MEMORY}
    assert found == memory_settings()
    assert not any(name in os.environ for name in MEMORY)


def test_what_the_user_has_set_stays(monkeypatch):
    monkeypatch.setenv("MALLOC_ARENA_MAX", "8")
    with settings_to_inherit():
        assert os.environ["MALLOC_ARENA_MAX"] == "8"
    assert os.environ["MALLOC_ARENA_MAX"] == "8"


def test_a_threshold_of_the_users_keeps_its_effect(monkeypatch):
    monkeypatch.setenv("MALLOC_MMAP_THRESHOLD_", "65536")
    assert set(memory_settings()) == {"MALLOC_ARENA_MAX", "MALLOC_TRIM_THRESHOLD_"}
