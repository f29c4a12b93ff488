"""U and its derivatives for accelerators: by products alone, without a decomposition or a wait.

Note [Nothing waits]
    A GPU runs behind the host: the host queues work and goes on. A decomposition, a comparison, a
    copy to the host make it wait until the queue is empty, and cannot be part of a CUDA graph. So
    here no value is ever looked at: the number of steps is fixed, and so are their coefficients,
    whatever W is. What the host has to know, that a W has diverged, arrives later (flag.py).

Note [How exact]
    All of it is float64, whatever W's type, so TF32 changes nothing. The steps are made for a
    ratio of the roots of M's eigenvalues, smallest to largest, down to ``quintics.SMALLEST``, 4e-7.
    With the default ε, a W of condition up to 1e6 and scale up to 1e3 is within that range.
    Outside, U is not quite orthonormal in the directions that are too small, and the gradient
    along them is inexact too. For a W of type float64 that is not enough: it goes to the host.
"""

from .flag import DeviceFlag
from .modes import modes_gradients, modes_values
from .polar import polar_by_products, polar_gradient_by_products

__all__ = [
    "DeviceFlag",
    "modes_gradients",
    "modes_values",
    "polar_by_products",
    "polar_gradient_by_products",
]
