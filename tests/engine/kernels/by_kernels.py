"""The library's functions by themselves, on the library that is in use."""

from tensorprojection.engine.dispatch import engine
from tensorprojection.engine.interface import LayerOptions, Polar
from tensorprojection.engine.kernels import calls
from tensorprojection.engine.kernels.kernel_engine import KernelEngine
from tensorprojection.engine.layout import layout_of


def library():
    found = engine()
    assert isinstance(found, KernelEngine)
    return found.library


def tiled(x, Us):
    """The layout of x with the kernels' plan."""
    return layout_of(x, Us, tiles=True)


def run_map(x, Us, layout, *, transposed):
    return calls.run_map(library(), x, Us, layout, transposed=transposed)


def run_gradients(x, grad, Us, layout, *, transposed, want_x):
    wanted = {"transposed": transposed, "want_x": want_x}
    return calls.run_gradients(library(), x, grad, Us, layout, **wanted)


def run_forward(x, Ws, eps, relative, transposed):
    names = tuple(f"W{k + 1}" for k in range(len(Ws)))
    options = LayerOptions(transposed, eps, "relative" if relative else "absolute", names)
    return calls.run_forward(library(), x, Ws, tiled(x, Ws), options)


def small_polar(W, eps, relative):
    return calls.run_polar(library(), W, eps, relative)


def small_polar_grad(W, dL_dU, G, V, s, eps, relative):
    return calls.run_polar_grad(library(), W, dL_dU, Polar(W, G, V, s), eps, relative)
