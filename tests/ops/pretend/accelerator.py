"""A simulated accelerator: tensors report a device, and their values are on the CPU.

It runs the code that a GPU would run, with autograd, on a machine without one. Under `Accelerator`
an operation fails that would make the host wait for a real device, or that a real device would
refuse; and the launches are counted.

    with Accelerator() as device:
        x = device.put(torch.randn(3, 2))
        y = (x @ x.mT).sum()       # runs
        y.item()                   # raises Waited
    device.launches                # {"aten.mm": 1, "aten.sum": 1}
    host(y)                        # the number, for the test itself

Note [A process of its own]
    torch counts its devices once, before the first backward pass, and with a device there, autograd
    refuses to run in a forked process. So this module is never imported where other tests run:
    tests/ops/test_pretend.py starts a process for it.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

NAME = "pretend"
_setup_privateuseone_for_python_backend(NAME)

aten = torch.ops.aten


# torch.tensor([1.0], device=...) goes by no mode: it makes memory on the device, and copies to it.
@torch.library.impl("aten::empty_strided", "privateuseone")
def _(*args: Any, **kwargs: Any) -> Any:
    raise Waited("numbers of the host are copied to the device")


# Operations whose result the host needs before it can go on, besides those that torch tags so.
WAITING = {
    "aten::_linalg_check_errors",
    "aten::_linalg_eigh",
    "aten::_linalg_eigvals",
    "aten::_linalg_svd",
    "aten::_local_scalar_dense",
    "aten::equal",
    "aten::is_nonzero",
    "aten::linalg_eig",
    "aten::linalg_lstsq",
    "aten::masked_select",
    "aten::nonzero",
    "aten::nonzero_static",
    "aten::repeat_interleave",
}
WAITING_TAGS = {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape}

COPIES = {"aten::copy_", "aten::copy", "aten::_to_copy", "aten::_copy_from"}

# Operations that give memory or another look at it, and run nothing on the device.
FREE = {
    "aten::_reshape_alias",
    "aten::_unsafe_view",
    "aten::alias",
    "aten::detach",
    "aten::empty",
    "aten::empty_like",
    "aten::empty_strided",
    "aten::lift_fresh",
    "aten::new_empty",
    "aten::new_empty_strided",
    "aten::squeeze_",
    "aten::t_",
    "aten::transpose_",
    "aten::unsqueeze_",
}


class Waited(AssertionError):  # noqa: N818
    """The host would have waited for the device."""


class Refused(AssertionError):  # noqa: N818
    """A real device would have refused this."""


class PretendTensor(Tensor):
    """Claims to be on the device; the numbers are in ``held``."""

    held: Tensor

    @staticmethod
    def __new__(cls, held: Tensor) -> PretendTensor:
        return Tensor._make_wrapper_subclass(
            cls,
            held.shape,
            strides=held.stride(),
            storage_offset=held.storage_offset(),
            dtype=held.dtype,
            device=f"{NAME}:0",
        )

    def __init__(self, held: Tensor) -> None:
        self.held = held

    # Only the mode below knows what is allowed, so without it nothing is.
    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in (aten.detach.default, aten.alias.default):
            return cls(func(args[0].held))
        if func is aten._has_compatible_shallow_copy_type.default:  # for `x.data = y`
            return True
        raise Refused(f"{func} outside of the accelerator's context")

    def tolist(self) -> Any:
        raise Waited("tolist waits for the device")

    def numpy(self, *, force: bool = False) -> Any:
        raise Waited("numpy waits for the device")

    def __repr__(self) -> str:  # type: ignore[override]
        return f"PretendTensor({tuple(self.shape)}, {self.dtype})"


def host(x: Tensor) -> Tensor:
    """The numbers of a tensor of the device: what a test looks at, not what the code may."""
    assert isinstance(x, PretendTensor)
    return x.held.detach().clone()


class Accelerator(TorchDispatchMode):
    """The device: what runs within is checked and counted.

    Args:
        float64: whether it has float64, which Apple's has not.
        may_wait: whether waits and copies are allowed, for code that is known to need them.
    """

    def __init__(self, *, float64: bool = True, may_wait: bool = False) -> None:
        super().__init__()
        self.float64 = float64
        self.may_wait = may_wait
        self.launches: Counter[str] = Counter()

    @property
    def count(self) -> int:
        """How many operations were launched."""
        return self.launches.total()

    def put(self, x: Tensor) -> PretendTensor:
        """x on the device: as a test's preparation, so it may take its time."""
        self._check_dtype(x.dtype, "put")
        with torch.no_grad():
            held = PretendTensor(x.detach().clone())
        return held.requires_grad_(x.requires_grad)

    def put_module(self, module: nn.Module) -> nn.Module:
        """The module's parameters and buffers on the device, in place."""
        for part in module.modules():
            for name, p in list(part.named_parameters(recurse=False)):
                part.register_parameter(name, nn.Parameter(self.put(p.detach()), p.requires_grad))
            for name, b in list(part.named_buffers(recurse=False)):
                part.register_buffer(name, self.put(b))
        return module

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        flat, _ = tree_flatten((args, kwargs))
        tensors = [x for x in flat if isinstance(x, Tensor)]
        ours = [x for x in tensors if isinstance(x, PretendTensor)]
        target = next((x for x in flat if isinstance(x, torch.device)), None)
        to_us = target is not None and target.type == NAME
        if not ours and not to_us:
            return func(*args, **kwargs)
        self._check(func, args, kwargs, tensors, ours, target)
        held = func(*tree_map(_held, args), **tree_map(_held, kwargs))
        if not _is_free(func):
            self.launches[str(func.overloadpacket)] += 1
        if target is not None and not to_us:
            return held  # it went to the host
        return self._wrapped(func, held, args, kwargs)

    def _check(
        self,
        func: Any,
        args: Any,
        kwargs: Any,
        tensors: list[Tensor],
        ours: list[PretendTensor],
        target: torch.device | None,
    ) -> None:
        name = func._schema.name
        # A number of the host in a tensor without axes is handed over with the launch.
        others = [x for x in tensors if not isinstance(x, PretendTensor) and x.ndim > 0]
        if name in COPIES and (_crosses(ours, tensors, target) or others):
            self._check_copy(func, tensors, kwargs)
        elif others:
            raise Refused(f"{func} with tensors on both host and device")
        if self.may_wait:
            return
        if name in WAITING or WAITING_TAGS & set(func.tags):
            raise Waited(f"{func} waits for the device")
        if name in ("aten::index", "aten::index_put", "aten::index_put_") and any(
            isinstance(i, Tensor) and i.dtype in (torch.bool, torch.uint8) for i in args[1]
        ):
            raise Waited(f"{func} with a mask waits for the device")

    def _check_copy(self, func: Any, tensors: list[Tensor], kwargs: Any) -> None:
        if not self.may_wait:
            raise Waited(f"{func} copies between host and device")
        # Apple's converts on its side of the copy, so that a float64 has to be made after it.
        types = {kwargs.get("dtype") or tensors[0].dtype, *(x.dtype for x in tensors)}
        if torch.float64 in types and not self.float64:
            raise Refused(f"{func}: this device has no float64, not even to copy from or to")

    def _wrapped(self, func: Any, held: Any, args: Any, kwargs: Any) -> Any:
        """What came out, on the device; an argument that was written to is that argument."""
        written = {
            id(x.held): x for x in tree_flatten((args, kwargs))[0] if isinstance(x, PretendTensor)
        }

        def wrap(x: Any) -> Any:
            if not isinstance(x, Tensor) or any(x is arg for arg in args):
                return x
            self._check_dtype(x.dtype, str(func))
            if id(x) not in written:
                return PretendTensor(x)
            same = written[id(x)]
            if same.shape != x.shape or same.stride() != x.stride():  # squeeze_ and its like
                same.data = PretendTensor(x)
            return same

        return tree_map(wrap, held)

    def _check_dtype(self, dtype: torch.dtype, what: str) -> None:
        if dtype == torch.float64 and not self.float64:
            raise Refused(f"{what}: this device has no float64")


def _held(x: Any) -> Any:
    if isinstance(x, PretendTensor):
        return x.held
    return torch.device("cpu") if isinstance(x, torch.device) and x.type == NAME else x


def _is_free(func: Any) -> bool:
    return bool(func.is_view) or func._schema.name in FREE


def _crosses(ours: list[PretendTensor], tensors: list[Tensor], target: torch.device | None) -> bool:
    """Whether a copy with this target leads from one side to the other."""
    return bool(tensors) and target is not None and bool(ours) != (target.type == NAME)
