"""Multilinear principal component analysis as a scikit-learn estimator."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from copy import deepcopy
from math import prod
from numbers import Integral, Real
from typing import Any, Self, TypeAlias

import numpy as np
import torch
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.utils.validation import check_is_fitted, validate_data
from torch import Tensor

from ..errors import ProjectionTypeError, ProjectionValueError
from ..functional import back_project, project
from ..shapes import Shape, per_mode, read_shape
from .data import Array, Source, as_tensor, split_rows, to_working_dtype
from .scatter import ModeScatter, alternate, centered
from .suggest import check_energy, shape_by_bound, smallest_shape

Components: TypeAlias = int | float | Sequence[int | None] | None


class MPCA(ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator):  # type: ignore[misc]
    """Multilinear PCA: principal components of tensors, along every mode at once.

    >>> x = torch.randn(200, 4, 4, 5) @ torch.randn(5, 16)
    >>> mpca = MPCA(n_components=(None, 3, 5)).fit(x)
    >>> mpca.transform(x).shape
    torch.Size([200, 4, 3, 5])

    The unsupervised counterpart of :class:`~tensorprojection.TensorProjection`: the projection to
    a given shape with the least reconstruction error, found by alternation. For vectors it is PCA.

    Samples lie along the first axis. Data may be an array of any order, or, with ``in_shape``
    given, flattened to two axes as in pipelines. Two axes without ``in_shape`` are vectors. The
    output is flattened if the input is, is NumPy or torch as the input is, and has its type.

    Args:
        n_components: the output shape, None for a mode that keeps its size; one integer for all
            modes; or a share of the energy in (0, 1] as a float: the smallest shape that keeps it
            (:func:`~tensorprojection.suggest_out_shape`). None keeps everything.
        in_shape: the shape of one sample, if the data is flattened.
        max_iter: the largest number of sweeps over the modes.
        tol: the alternation stops after a sweep that gains no more than this share of the energy.
        center: True to subtract the mean.

    Attributes:
        components_: per mode, U_k: ``p_k × q_k`` with orthonormal columns.
        captured_energy_ratio_: the share of the energy (about the mean) that the projection keeps.
            After :meth:`partial_fit` a lower bound, exact if only one mode shrinks.
        mode_spectra_: per mode, the share of the energy of each of its p_k directions.
        reconstruction_errors_: the share of the energy lost, initially and after every sweep; it
            does not increase, up to rounding.
        mean_: the mean of the samples, zeros with ``center=False``.
        n_iter_: the number of sweeps; 1 if the initialization is the optimum, 0 after
            :meth:`partial_fit`.
        in_shape_, out_shape_: the shape of a sample and of its projection.
        n_features_in_: the number of entries of one sample.
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
        """Fit the projection to data in memory, or in a memory map."""
        samples, _ = self._read(X, reset=True)
        return self._fit(Source(samples))

    def fit_loader(self, loader: Iterable[Any]) -> Self:
        """Fit the projection to data from a loader, with the same result as :meth:`fit`.

        Only the mean and one ``p_k × p_k`` matrix per mode are in memory. The loader is read once
        for the initialization, and once per mode and sweep. It must give the same samples every
        time, in any order: no random augmentation.

        Args:
            loader: batches of tensors or arrays with the samples along the first axis, on CPU or
                GPU. The first entry of a tuple such as ``(x, y)`` is used.
        """
        self._check_parameters()
        return self._fit(Source(loader, in_shape=self.in_shape))

    def partial_fit(self, X: Any, y: Any = None) -> Self:
        """Add a batch, and update the projection to each mode's own leading directions.

        :meth:`fit` begins its sweeps with the same projection. If ``n_components`` is a share, the
        shape follows from the bound that :func:`~tensorprojection.suggest_out_shape` uses for
        iterators.
        """
        first = not hasattr(self, "_scatter")
        samples, _ = self._read(X, reset=first)
        # A copy: an invalid batch must not change the estimator.
        scatter = ModeScatter(center=self.center) if first else deepcopy(self._scatter)
        for chunk in Source(samples).chunks():
            scatter.update(chunk)
        scatter.check()
        if _is_share(self.n_components):
            out_shape = shape_by_bound(scatter, float(self.n_components))[0]  # type: ignore[arg-type]
        else:
            out_shape = self._out_shape(scatter)
        Us, errors = scatter.directions(out_shape), [scatter.lost_bound(out_shape)]
        self._store(scatter, Us, errors, sweeps=0)
        return self

    def transform(self, X: Any) -> Any:
        """Return the projections of samples."""
        check_is_fitted(self)
        samples, flat = self._read(X, reset=False)
        mean, Us = torch.from_numpy(self.mean_), [*map(torch.from_numpy, self.components_)]

        def down(x: Tensor) -> Tensor:
            return project(centered(x, mean), [U.to(x) for U in Us])

        z = _mapped(samples, down, self.out_shape_)
        return z.reshape(len(z), -1) if flat else z

    def inverse_transform(self, X: Any) -> Any:
        """Return the samples reconstructed from their projections."""
        check_is_fitted(self)
        z = X if isinstance(X, Tensor) else np.asarray(X)
        samples, flat = _shaped(z, self.out_shape_, "projections")
        mean, Us = torch.from_numpy(self.mean_), [*map(torch.from_numpy, self.components_)]

        def up(x: Tensor) -> Tensor:
            return back_project(x, [U.to(x) for U in Us]) + mean.to(x)

        x = _mapped(samples, up, self.in_shape_)
        return x.reshape(len(x), -1) if flat else x

    def _fit(self, source: Source) -> Self:
        scatter = ModeScatter.of(source, center=self.center)
        if _is_share(self.n_components):
            energy = float(self.n_components)  # type: ignore[arg-type]
            out_shape = smallest_shape(source, scatter, energy)[0]
        else:
            out_shape = self._out_shape(scatter)
        Us, errors = alternate(source, scatter, out_shape, max_iter=self.max_iter, tol=self.tol)
        self._store(scatter, Us, errors, sweeps=max(1, len(errors) - 1))
        return self

    def _store(
        self, scatter: ModeScatter, Us: list[Tensor], errors: list[float], sweeps: int
    ) -> None:
        self._scatter = scatter
        self.components_ = [U.cpu().numpy() for U in Us]
        self.mean_ = scatter.mean.cpu().numpy()
        self.mode_spectra_ = [values.cpu().numpy() for values in scatter.spectra()]
        self.reconstruction_errors_ = np.array(errors)
        self.captured_energy_ratio_ = 1.0 - errors[-1]
        self.n_iter_ = sweeps
        self.in_shape_ = scatter.shape
        self.out_shape_ = tuple(U.shape[1] for U in Us)
        self.n_features_in_ = prod(scatter.shape)
        self.n_samples_seen_ = scatter.count

    def _out_shape(self, scatter: ModeScatter) -> Shape:
        sizes = per_mode("n_components", self.n_components, len(scatter.shape))
        for size in sizes:
            if size is not None and (isinstance(size, bool) or not isinstance(size, Integral)):
                raise ProjectionTypeError(
                    "Expected n_components to be a shape such as (6, 6, 20), an integer, a share "
                    f"of the energy as a float, or None, got {self.n_components!r}."
                )
        most = scatter.largest_shape()
        out_shape = tuple(m if q is None else int(q) for q, m in zip(sizes, most, strict=True))
        scatter.check_sizes("n_components", out_shape)
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
        """Return X as ``(n, *in_shape)``, and True if X was flattened."""
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
        # scikit-learn checks tables of two axes, and stores the names of their features.
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
    """Return x as ``(n, *shape)``, and True if x was flattened from more than one mode."""
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
    """Apply a function to all samples; to an array in chunks, which needs less memory."""
    if isinstance(samples, Tensor):
        with torch.autocast(samples.device.type, enabled=False):
            z: Tensor = function(to_working_dtype(samples))
        return z.to(samples.dtype) if samples.is_floating_point() else z
    result: Array = np.empty((len(samples), *shape), samples.dtype)
    first = 0
    with torch.autocast("cpu", enabled=False):
        for rows in split_rows(samples):
            x = to_working_dtype(as_tensor(rows))
            result[first : first + len(x)] = function(x).numpy()
            first += len(x)
    return result
