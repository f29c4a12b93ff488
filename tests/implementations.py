"""Select the implementation of the custom ops on a CPU.

Not in conftest.py: several folders have a file of that name, and an import may find any of them.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

IMPLEMENTATIONS = ("kernels", "torch", "matmul-only")


@contextmanager
def implementation(name: str) -> Iterator[None]:
    """Compute everything inside with the C kernels, with torch, or as on an accelerator."""
    from tensorprojection.ops import multilinear, polar
    from tensorprojection.ops.kernels import calls

    with pytest.MonkeyPatch.context() as patch:
        if name != "kernels":
            patch.setattr(calls, "load", lambda: None)
        if name == "matmul-only":
            patch.setattr(polar, "_is_on_host", lambda Ws: False)
            patch.setattr(multilinear, "_is_on_host", lambda x: False)
        yield
