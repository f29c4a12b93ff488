"""Fixtures of the suite. The oracle is that of the PyTorch layer's tests: NumPy, in float64."""

import sys
from pathlib import Path

import keras
import numpy as np
import pytest

sys.path.append(str(Path(__file__).parents[2]))  # for oracle.py

if keras.backend.backend() == "tensorflow":
    import tensorflow as tf

    # For MirroredStrategy; it must be said before anything else runs.
    tf.config.set_logical_device_configuration(
        tf.config.list_physical_devices("CPU")[0], [tf.config.LogicalDeviceConfiguration()] * 2
    )


@pytest.fixture
def rng():
    keras.utils.set_random_seed(0)
    return np.random.default_rng(0)


@pytest.fixture
def backend():
    return keras.backend.backend()
