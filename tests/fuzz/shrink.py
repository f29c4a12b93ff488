"""Make a failing case as small and plain as possible."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import fields, replace

from .cases import Case

_TRIES = 150
_SIZES = ("seed", "large", "small", "batch", "wanted", "x_twist", "grad_twist")


def shrink(case: Case, fails: Callable[[Case], bool]) -> Case:
    """Takes each simplification after which the case still fails, until there is none."""
    tries = _TRIES
    simpler = True
    while simpler:
        simpler = False
        for other in _simpler(case):
            if not other.is_valid or tries == 0:
                continue
            tries -= 1
            if fails(other):
                case, simpler = other, True
                break
    return case


def kind(case: Case) -> tuple[str, ...]:
    """What is special about it: the settings that are not the usual ones, whatever the sizes."""
    return tuple(
        f"{field.name}={getattr(case, field.name)!r}"
        for field in fields(case)
        if field.name not in _SIZES and getattr(case, field.name) != field.default
    )


def _simpler(case: Case) -> Iterator[Case]:
    for field in fields(case):
        if field.name not in _SIZES and getattr(case, field.name) != field.default:
            changes = {field.name: field.default}
            # No gradient is asked for without a graph, nor a graph made for no gradient.
            if field.name == "mode" and not case.wanted:
                changes["wanted"] = ("x",)
            yield replace(case, **changes)
    for name in case.wanted:
        yield replace(case, wanted=tuple(n for n in case.wanted if n != name))
    order = len(case.large)
    for k in range(order if order > 1 else 0):
        yield replace(
            case,
            large=case.large[:k] + case.large[k + 1 :],
            small=case.small[:k] + case.small[k + 1 :],
            wanted=tuple(_renamed(case.wanted, k + 1)),
        )
    for i, n in enumerate(case.batch):
        yield replace(case, batch=case.batch[:i] + case.batch[i + 1 :])
        for smaller in {n // 2, n - 1} - {n, -1}:
            yield replace(case, batch=(*case.batch[:i], smaller, *case.batch[i + 1 :]))
    for k in range(order):
        p, q = case.large[k], case.small[k]
        for to in ((p // 2, q // 2), (p - 1, q - 1), (p // 2, q), (p - 1, q), (p, q - 1)):
            # A mode that has a W keeps it, and one that has none gets none.
            if to[1] >= 1 and (to[0] == to[1]) == (p == q):
                both = case.use == "shared"
                large, small = list(case.large), list(case.small)
                large[k], small[k] = to
                if both:
                    large, small = [to[0]] * 2, [to[1]] * 2
                yield replace(case, large=tuple(large), small=tuple(small))
    for name in ("x_twist", "grad_twist", "seed"):
        if getattr(case, name):
            yield replace(case, **{name: 0})


def _renamed(wanted: tuple[str, ...], gone: int) -> Iterator[str]:
    """The names when mode `gone`, from 1, is no longer there."""
    for name in wanted:
        k = 0 if name == "x" else int(name[1:])
        if k != gone:
            yield f"W{k - 1}" if k > gone else name
