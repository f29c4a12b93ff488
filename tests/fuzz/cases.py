"""A case: plain values, drawn at random, and the Python program that they stand for.

The program is what runs, and what is printed where it fails: the two cannot differ.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from math import prod

from . import layouts

# What a layer's user does with it, as an expression; the oracle evaluates the same one.
USES = {
    "once": "layer(x)",
    "twice": "layer(x * layer(x).square().mean())",
    "tied": "up(torch.tanh(layer(x)))",
    "shared": "layer(x)",  # W2 is W1
    "frozen": "frozen(x)",
}

# W's singular values, by their number q.
SPECTRA = {
    "orthonormal": "torch.ones({q})",
    "repeated": "(1.0 + torch.arange({q}) // 2)",
    "deficient": "(torch.arange({q}) < {half})",
    "graded": "torch.logspace(-3, 0, {q})",
}

MODES = ("backward", "create_graph", "no_grad", "inference_mode")


@dataclass(frozen=True)
class Case:
    seed: int = 0
    transposed: bool = False
    large: tuple[int, ...] = (4,)
    small: tuple[int, ...] = (2,)  # where it is as the large, the mode is left alone
    batch: tuple[int, ...] = (3,)
    x_dtype: str = "float32"
    W_dtype: str = "float32"
    autocast: str | None = None
    default_dtype: str = "float32"
    x_layout: str = "contiguous"
    x_twist: int = 0
    grad_layout: str = "contiguous"
    grad_twist: int = 0
    training: bool = True
    mode: str = "backward"
    wanted: tuple[str, ...] = ("x",)  # what gradients are asked for: x, W1, W2, …
    eps: float | None = None
    eps_mode: str = "absolute"
    W_kind: str = "normal"
    W_scale: float = 1.0
    use: str = "once"
    warm: bool = False  # the layer was called before, with another W and in another type
    threads: int = 1
    kernels: bool = True

    @property
    def in_shape(self) -> tuple[int, ...]:
        return self.small if self.transposed else self.large

    @property
    def out_shape(self) -> tuple[int, ...]:
        return self.large if self.transposed else self.small

    @property
    def x_shape(self) -> tuple[int, ...]:
        return (*self.batch, *self.in_shape)

    @property
    def z_shape(self) -> tuple[int, ...]:
        return (*self.batch, *(self.in_shape if self.use == "tied" else self.out_shape))

    @property
    def z_dtype(self) -> str:
        """The type of the map and of its output: autocast's, which leaves float64 alone, or x's."""
        return self.autocast if self.autocast and self.x_dtype != "float64" else self.x_dtype

    @property
    def is_narrow(self) -> bool:
        return "float16" in (self.x_dtype, self.W_dtype, self.z_dtype)

    @property
    def changed(self) -> tuple[int, ...]:
        """The modes that have a W, from 1."""
        sizes = enumerate(zip(self.large, self.small, strict=True), start=1)
        return tuple(k for k, (p, q) in sizes if p != q)

    @property
    def leaves(self) -> tuple[str, ...]:
        """The W's by name, each once."""
        names = tuple(f"W{k}" for k in self.changed)
        return names[:1] if self.use == "shared" else names

    @property
    def is_valid(self) -> bool:
        if len(self.large) != len(self.small) or any(map(int.__lt__, self.large, self.small)):
            return False
        if self.use == "shared" and not (
            len(self.large) == 2 == len(self.changed)
            and self.large[0] == self.large[1]
            and self.small[0] == self.small[1]
        ):
            return False
        if self.use != "once" and not self.changed:
            return False
        if self.use == "twice" and (prod(self.x_shape) == 0 or self.z_dtype == "float16"):
            return False  # the mean of nothing; and float16 has no numbers for the mean's gradient
        if self.is_narrow and (self.W_kind in ("graded", "deficient") or self.W_scale < 0.1):
            return False  # gradients have the inverse of W's scale, and more than float16 can hold
        return (
            layouts.fits(self.x_layout, self.x_shape, self.x_dtype)
            and layouts.fits(self.grad_layout, self.z_shape, self.z_dtype)
            and set(self.wanted) <= {"x", *(() if self.use == "frozen" else self.leaves)}
            and bool(self.wanted) == (self.mode in ("backward", "create_graph"))
        )


def program(case: Case) -> str:
    """Return a script that shows the case alone."""
    switch = 'import os\nos.environ["TENSORPROJECTION_COMPILED"] = "0"\n'
    return ("" if case.kernels else switch) + setup(case) + action(case)


def setup(case: Case) -> str:
    """The layer, and x."""
    lines = ["import torch", "import tensorprojection as tp", ""]
    lines += [f"torch.set_num_threads({case.threads})"] if case.threads != 1 else []
    if case.default_dtype != "float32":
        lines.append(f"torch.set_default_dtype(torch.{case.default_dtype})")
    lines += [
        f"rng = torch.Generator().manual_seed({case.seed})",
        "def normal(*shape):",
        "    return torch.randn(shape, generator=rng, dtype=torch.float64)",
        *_layer(case),
        *_weights(case),
        f"x = {layouts.expression(case.x_layout, case.x_shape, case.x_dtype, case.x_twist)}",
    ]
    if case.use == "frozen":
        lines.append("frozen = layer.freeze()")
    for name in ("x", *case.leaves):
        wanted = name in case.wanted
        if name == "x" and wanted:
            lines.append("x.requires_grad_()")
        elif name != "x" and not wanted:
            lines.append(f"layer.{name}.requires_grad_(False)")
    return "\n".join(lines) + "\n"


def action(case: Case) -> str:
    """What runs: it leaves z, and where gradients are asked for, the lists first and second."""
    contexts = [f"torch.{case.mode}()"] if case.mode in ("no_grad", "inference_mode") else []
    if case.autocast:
        contexts.append(f'torch.autocast("cpu", torch.{case.autocast})')
    call = f"z = {USES[case.use]}"
    lines = [f"with {', '.join(contexts)}:", f"    {call}"] if contexts else [call]
    return "\n".join([*lines, *_gradients(case)]) + "\n"


def _layer(case: Case) -> list[str]:
    name = "TransposeTensorProjection" if case.transposed else "TensorProjection"
    options = [f"dtype=torch.{case.W_dtype}"]
    if case.eps is not None:
        options.append(f"eps={case.eps}")
    if case.eps_mode != "absolute":
        options.append(f'eps_mode="{case.eps_mode}"')
    lines = [f"layer = tp.{name}({case.in_shape}, {case.out_shape}, {', '.join(options)})"]
    if case.use == "shared":
        lines.append("layer.W2 = layer.W1")
    if not case.training:
        lines.append("layer.eval()")
    if case.use == "tied":
        lines.append("up = layer.transpose(tied=True)")
    if case.warm:
        other = "bfloat16" if case.z_dtype == "float32" else "float32"
        zeros = f"torch.zeros({case.in_shape}, dtype=torch.{other})"
        lines += ["with torch.no_grad():", f"    layer({zeros})"]
    return lines


def _weights(case: Case) -> list[str]:
    lines = []
    for name in case.leaves:
        k = int(name[1:]) - 1
        p, q = case.large[k], case.small[k]
        if case.W_kind == "normal":
            value = f"normal({p}, {q})"
        else:
            sigma = SPECTRA[case.W_kind].format(q=q, half=(q + 1) // 2)
            left, right = (f"torch.linalg.qr(normal({n}, {q}))[0]" for n in (p, q))
            value = f"{left} * {sigma} @ {right}.mT"
        lines.append(f"layer.{name}.data.copy_({case.W_scale} * ({value}))")
    return lines


def _gradients(case: Case) -> list[str]:
    if not case.wanted:
        return []
    grad = layouts.expression(case.grad_layout, case.z_shape, case.z_dtype, case.grad_twist)
    leaves = ", ".join(name if name == "x" else f"layer.{name}" for name in case.wanted)
    lines = [f"grad = {grad}", f"wanted = [{leaves}]"]
    if case.mode == "backward":
        return [*lines, "first = torch.autograd.grad(z, wanted, grad)"]
    return [
        *lines,
        "grad.requires_grad_()",
        "first = torch.autograd.grad(z, wanted, grad, create_graph=True)",
        "along = [normal(*d.shape).to(d.dtype) for d in first]",
        "second = torch.autograd.grad(first, [*wanted, grad], along, allow_unused=True)",
    ]


SIZES = (1, 2, 3, 4, 5, 6, 7, 8, 11, 12, 13, 16, 17, 24, 31, 37, 40)
ROWS = (0, 1, 2, 3, 4, 5, 7, 8, 16, 17, 29, 37)
MOST = 30_000  # numbers of the larger tensor
WIDE = (97, 66)  # a W with more columns than the compiled kernels take


def draw(seed: int, index: int) -> Case:
    """The index-th case of a run with this seed, whatever came before it."""
    choose = random.Random(f"{seed}/{index}")
    while True:
        case = _draw(choose)
        numbers = prod(case.batch) * prod(case.large)
        # The oracle's time grows with the square of W's columns.
        narrow = max(case.small) <= 24 or case.large == WIDE[:1]
        if case.is_valid and numbers <= MOST and narrow:
            return case


def _draw(choose: random.Random) -> Case:
    one = choose.choice
    use = one(["once"] * 6 + ["twice", "tied", "shared", "frozen"])
    order = 2 if use == "shared" else one([1, 2, 2, 3, 3, 4, 5])
    sizes = SIZES if order < 3 else SIZES[: 12 if order == 3 else 7]
    pairs = []
    for _ in range(order):
        p = one(sizes)
        pairs.append((p, p if choose.random() < 0.25 else choose.randint(1, p)))
    if use == "shared":
        pairs = [pairs[0]] * 2
    if order == 1 and choose.random() < 0.1:
        pairs = [WIDE]
    large, small = zip(*pairs, strict=True)
    x_dtype = one(["float32"] * 3 + ["bfloat16", "bfloat16", "float16", "float64"])
    mode = one(["backward"] * 5 + ["create_graph"] * 2 + ["no_grad", "inference_mode"])
    changed = [f"W{k}" for k, (p, q) in enumerate(pairs, start=1) if p != q]
    names = ["x", *changed[: {"shared": 1, "frozen": 0}.get(use)]]
    wanted: tuple[str, ...] = ()
    if mode in ("backward", "create_graph"):
        wanted = tuple(names if choose.random() < 0.6 else (n for n in names if one([True, False])))
    W_dtype = one([x_dtype, x_dtype, "float32", "float32", "float64", "bfloat16", "float16"])
    return Case(
        seed=choose.randrange(1000),
        transposed=one([True, False]),
        large=large,
        small=small,
        batch=tuple(one(ROWS) for _ in range(one([0, 1, 1, 1, 2, 3]))),
        x_dtype=x_dtype,
        W_dtype=W_dtype,
        autocast=one([None] * 5 + ["bfloat16", "float16"]),
        default_dtype=one(["float32"] * 6 + ["float64", "bfloat16"]),
        x_layout=one(("contiguous", *layouts.LAYOUTS)),
        x_twist=choose.randrange(100),
        grad_layout=one(("contiguous", *layouts.LAYOUTS)),
        grad_twist=choose.randrange(100),
        training=choose.random() < 0.6,
        mode=mode,
        wanted=wanted,
        eps=one([None, None, 1e-3, 0.1]),
        eps_mode=one(["absolute", "absolute", "relative"]),
        W_kind=one(["normal", "normal", *SPECTRA]),
        W_scale=one([1e-3, 0.05, 0.3, 1.0, 1e3]),
        use=use,
        warm=choose.random() < 0.3,
        threads=one([1, 1, 2]),
        kernels=choose.random() < 0.7,
    )
