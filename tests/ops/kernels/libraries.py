"""The kernels compiled for other processors than this one."""

from typing import NamedTuple

import torch

from tensorprojection.ops.kernels.build import variants


class Way(NamedTuple):
    variant: str
    extra: tuple[str, ...] = ()


def runs_here(variant):
    """Whether this processor can run what is compiled for that one."""
    order = ["DEFAULT", "AVX2", "AVX512"]
    capability = torch.backends.cpu.get_cpu_capability()
    best = order.index(capability) if capability in order else 0
    return variant in variants() and order.index(variant) <= best


# A width of vectors that the processor does not have is made up from several; slowly, but as well.
# DEFAULT is 4 wide by itself.
WAYS = {
    "AVX512": Way("AVX512"),
    "AVX2": Way("AVX2"),
    "DEFAULT": Way("DEFAULT"),
    "8 wide": Way("DEFAULT", ("-DWIDTH=8", "-O1")),
    "16 wide": Way("DEFAULT", ("-DWIDTH=16", "-O1")),
}

# For the tests alone: the next compiler has warnings that this one has not, and nobody's
# installation should fail because of one. A vector wider than the processor's would be handed over
# between functions in a way of its own, but no function that is not inlined has one.
WARNINGS = ("-Wall", "-Wextra", "-Wshadow", "-Wmissing-prototypes", "-Werror", "-Wno-psabi")

# This processor's own instructions, and the widest vectors. Without optimisation, as it has to
# compile quickly.
SANITIZED = Way(
    next(variant for variant in variants() if runs_here(variant)),
    (
        "-DWIDTH=16",
        "-O0",
        "-g1",
        "-fsanitize=address,undefined",
        "-fno-sanitize-recover=undefined",
        *WARNINGS,
    ),
)
