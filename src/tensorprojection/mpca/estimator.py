"""Multilinear principal component analysis as a scikit-learn estimator."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from copy import deepcopy
from math import prod
from numbers import Integral, Real
from typing import Any, Self, TypeAlias

import numpy as np
import torch
from sklearn.base import (
    BaseEstimator,
    ClassNamePrefixFeaturesOutMixin,
    TransformerMixin,
)
from sklearn.utils.validation import (
    check_is_fitted,
    validate_data,
)
from torch import Tensor

from ..algebra.multilinear import back_project, project
from ..engine.dtypes import no_autocast
from ..errors import ProjectionTypeError, ProjectionValueError
from ..shapes import Shape, per_mode, read_shape
from .alternating import alternate, bound, check_sizes, largest_shape, start
from .batches import CHUNK_BYTES, Array, Source, as_tensor, working_dtype
from .energy import check_energy, shape_by_bound, smallest_shape
from .scatter import ModeScatter, scatter

Components: TypeAlias = int | float | Sequence[int | None] | None


class MPCA(ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator):  # type: ignore[misc]
    """Multilinear PCA: principal components of tensors, along every mode at once.

    >>> x = torch.randn(200, 4, 4, 5) @ torch.randn(5, 16)
    >>> mpca = MPCA(n_components=(None, 3, 5)).fit(x)
    >>> mpca.transform(x).shape
    torch.Size([200, 4, 3, 5])

    The unsupervised counterpart of :class:`~tensorprojection.TensorProjection`: of all projections
    to a shape it looks for the one with the least error of reconstruction, by alternation (see
    ``alternating.py``). For vectors it is PCA.

    Samples lie along the first axis. Data may be an array of any order, or flattened to two axes,
    as pipelines have it, with ``in_shape`` given; two axes without ``in_shape`` are vectors. What
    comes out is flattened if what came in was, is NumPy or torch as that was, and of its type.

    Args:
        n_components: the shape to reach, None for a mode that keeps its size; one integer for all
            modes; or a share of the energy in (0, 1] as a float: the smallest shape that keeps it
            (:func:`~tensorprojection.suggest_out_shape`). None keeps everything.
        in_shape: the shape of one sample, where data comes flattened.
        max_iter: the most sweeps over the modes.
        tol: a sweep that gains no more than this share of the energy is the last.
        center: whether the mean is subtracted.

    Attributes:
        components_: by mode, U_k: ``p_k × q_k`` with orthonormal columns.
        explained_energy_ratio_: the share of the energy (about the mean) that the projection keeps.
            After :meth:`partial_fit` a lower bound, exact if only one mode shrinks.
        mode_spectra_: by mode, the share of the energy that each of its p_k directions holds.
        reconstruction_errors_: the share of the energy lost, at the start and after every sweep;
            it never rises but for rounding.
        mean_: the mean of the samples, zeros with ``center=False``.
        n_iter_: the sweeps made; 1 where the start is the optimum, 0 after :meth:`partial_fit`.
        in_shape_, out_shape_: the shapes before and after.
        n_features_in_: the entries of one sample.
        n_samples_seen_: the number of samples.
    """

    def __init__(
        self,
        n_components: Components = None,
        *,
        in_shape: Sequence[int] | None = None,
        max_iter: int = 100,
        tol: float = 1e-6,
        center: bool = True,
    ) -> None:
        self.n_components = n_components
        self.in_shape = in_shape
        self.max_iter = max_iter
        self.tol = tol
        self.center = center

    def fit(self, X: Any, y: Any = None) -> Self:
        """Find the projection of data in memory (or mapped into it)."""
        samples, _ = self._read(X, reset=True)
        return self._fit(Source(samples))

    def fit_loader(self, loader: Iterable[Any]) -> Self:
        """Find the projection of data that a loader streams, the same as :meth:`fit` would.

        Only the mean and one ``p_k × p_k`` matrix per mode are kept. The loader is read once for
        the start, and once per mode and sweep after that, so it has to be repeatable and to give
        the same samples every time, in whatever order: no random augmentation.

        Args:
            loader: gives tensors or arrays with the samples along the first axis, on CPU or GPU;
                of a tuple such as ``(x, y)`` the first entry is taken.
        """
        self._check_parameters()
        return self._fit(Source(loader, in_shape=self.in_shape))

    def partial_fit(self, X: Any, y: Any = None) -> Self:
        """Take in a batch and update the projection, from each mode's leading directions by itself.

        That is where :meth:`fit` starts its sweeps. A share as ``n_components`` chooses its shape
        by the bound that :func:`~tensorprojection.suggest_out_shape` uses for iterators.
        """
        first = not hasattr(self, "_seen")
        samples, _ = self._read(X, reset=first)
        # A batch that is refused leaves the estimator as it was.
        seen = ModeScatter(center=self.center) if first else deepcopy(self._seen)
        for chunk in Source(samples).chunks():
            seen.update(chunk)
        seen.check()
        if _is_share(self.n_components):
            out_shape = shape_by_bound(seen, float(self.n_components))[0]  # type: ignore[arg-type]
        else:
            out_shape = self._out_shape(seen)
        self._keep(seen, start(seen, out_shape), [bound(seen, out_shape)], 0)
        return self

    def transform(self, X: Any) -> Any:
        """The projections of samples."""
        check_is_fitted(self)
        samples, flat = self._read(X, reset=False)
        Us = self.components_
        center = project(torch.from_numpy(self.mean_), [torch.from_numpy(U) for U in Us])

        def down(x: Tensor) -> Tensor:
            return project(x, [torch.from_numpy(U).to(x) for U in Us]) - center.to(x)

        return _flattened(_mapped(samples, down, self.out_shape_), flat)

    def inverse_transform(self, X: Any) -> Any:
        """The samples reconstructed from their projections, as far as the kept directions allow."""
        check_is_fitted(self)
        z = X if isinstance(X, Tensor) else np.asarray(X)
        samples, flat = _shaped(z, self.out_shape_, "projections")
        mean, Us = torch.from_numpy(self.mean_), self.components_

        def up(x: Tensor) -> Tensor:
            return back_project(x, [torch.from_numpy(U).to(x) for U in Us]) + mean.to(x)

        return _flattened(_mapped(samples, up, self.in_shape_), flat)

    def _fit(self, source: Source) -> Self:
        seen = scatter(source, center=self.center)
        if _is_share(self.n_components):
            energy = float(self.n_components)  # type: ignore[arg-type]
            out_shape = smallest_shape(source, seen, energy)[0]
        else:
            out_shape = self._out_shape(seen)
        found = alternate(source, seen, out_shape, max_iter=self.max_iter, tol=self.tol)
        self._keep(seen, found.Us, found.errors, found.sweeps)
        return self

    def _keep(self, seen: ModeScatter, Us: list[Tensor], errors: list[float], sweeps: int) -> None:
        self._seen = seen
        self.components_ = [_numpy(U) for U in Us]
        self.mean_ = _numpy(seen.mean)
        self.mode_spectra_ = [_numpy(values) for values in seen.spectra()]
        self.reconstruction_errors_ = np.array(errors)
        self.explained_energy_ratio_ = 1.0 - errors[-1]
        self.n_iter_ = sweeps
        self.in_shape_ = seen.shape
        self.out_shape_ = tuple(U.shape[1] for U in Us)
        self.n_features_in_ = prod(seen.shape)
        self.n_samples_seen_ = seen.count

    def _out_shape(self, seen: ModeScatter) -> Shape:
        sizes = per_mode("n_components", self.n_components, len(seen.shape))
        for size in sizes:
            if size is not None and (isinstance(size, bool) or not isinstance(size, Integral)):
                raise ProjectionTypeError(
                    "Expected n_components to be a shape such as (6, 6, 20), an integer, a share "
                    f"of the energy as a float, or None, got {self.n_components!r}."
                )
        most = largest_shape(seen)
        out_shape = tuple(m if q is None else int(q) for q, m in zip(sizes, most, strict=True))
        check_sizes("n_components", seen, out_shape)
        return out_shape

    def _check_parameters(self) -> None:
        if _is_share(self.n_components):
            check_energy("n_components as a share", float(self.n_components))  # type: ignore[arg-type]
        if isinstance(self.max_iter, bool) or not isinstance(self.max_iter, Integral):
            raise ProjectionTypeError(f"Expected max_iter to be an integer, got {self.max_iter!r}.")
        if self.max_iter < 1:
            raise ProjectionValueError(f"Expected max_iter >= 1, got {self.max_iter}.")
        if isinstance(self.tol, bool) or not isinstance(self.tol, Real):
            raise ProjectionTypeError(f"Expected tol to be a number, got {self.tol!r}.")
        if not self.tol >= 0:
            raise ProjectionValueError(f"Expected tol >= 0, got {self.tol}.")
        if self.in_shape is not None:
            read_shape("in_shape", self.in_shape, none_allowed=False)

    def _read(self, X: Any, *, reset: bool) -> tuple[Tensor | Array, bool]:
        """X as ``(n, *in_shape)``, and whether it came flattened."""
        if reset:
            self._check_parameters()
            known = None if self.in_shape is None else tuple(self.in_shape)
        else:
            known = self.in_shape_
        if isinstance(X, Tensor):
            return _shaped(X, known, "data")
        shape: Shape | None = None
        if getattr(X, "ndim", 2) > 2:
            if known is not None:
                _shaped(X, known, "data")
            shape = tuple(X.shape[1:])
            X = np.asarray(X).reshape(len(X), -1)
        # scikit-learn's own checks, errors and names of features, which are those of a table.
        table = validate_data(self, X, reset=reset, dtype=[np.float64, np.float32])
        if shape is not None:
            return table.reshape(len(table), *shape), False
        return _shaped(table, known, "data")

    @property
    def _n_features_out(self) -> int:
        return prod(self.out_shape_)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.transformer_tags.preserves_dtype = ["float64", "float32"]
        return tags


def _is_share(n_components: Any) -> bool:
    return isinstance(n_components, Real) and not isinstance(n_components, Integral)


def _shaped(x: Tensor | Array, shape: Shape | None, name: str) -> tuple[Tensor | Array, bool]:
    """x as ``(n, *shape)``, and whether it came flattened from more modes than one."""
    if x.ndim < 2:
        raise ProjectionValueError(
            f"Expected {name} of shape (n, p1, ...), samples along the first axis, "
            f"got {tuple(x.shape)}."
        )
    if shape is None or tuple(x.shape[1:]) == shape:
        return x, False
    if x.ndim == 2 and x.shape[1] == prod(shape):
        return x.reshape(len(x), *shape), True
    sizes = ", ".join(map(str, shape))
    raise ProjectionValueError(
        f"Expected {name} of shape (n, {sizes}) or (n, {prod(shape)}), got {tuple(x.shape)}."
    )


def _mapped(samples: Tensor | Array, function: Any, shape: Shape) -> Tensor | Array:
    """function of all samples: of an array in chunks, so that no second copy of it is needed."""
    if isinstance(samples, Tensor):
        with no_autocast(samples):
            z: Tensor = function(samples.to(working_dtype(samples)))
        return z.to(samples.dtype) if samples.is_floating_point() else z
    result: Array = np.empty((len(samples), *shape), samples.dtype)
    rows = max(1, CHUNK_BYTES // max(1, samples[:1].nbytes))
    for first in range(0, len(samples), rows):
        x = as_tensor(samples[first : first + rows])
        with no_autocast(x):
            result[first : first + rows] = function(x.to(working_dtype(x))).numpy()
    return result


def _flattened(x: Tensor | Array, flat: bool) -> Tensor | Array:
    return x.reshape(len(x), -1) if flat else x


def _numpy(x: Tensor) -> Array:
    array: Array = x.cpu().numpy()
    return array
