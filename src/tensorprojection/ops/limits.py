"""Limits that Python and the C kernels share.

build.py passes each of them to the compiler as a macro of the same name.
"""

# A plan.
MOST_AXES = 12  # of a tensor, not counting its rows
TILE_MODES = 4  # of one tile
TILE_NUMBERS = 3500  # in one copy of a tile's large side
TILE_ENTRIES = 4096  # in all matrices of a tile together

# A matrix W.
MOST_COLUMNS = 64  # with more, a decomposition by LAPACK is faster
ROTATIONS_LIMIT = 4096  # entries up to which Jacobi rotations are an alternative

# Numbers in a tensor or matrix below which a second thread does not pay.
ONE_THREAD = 16384

# If the ratio of the eigenvalues of M = WᵀW + ε²I is larger than this, M in float64 no longer
# gives V and s to float32's precision: the error in its smallest direction is about 2e-16 times
# the ratio.
GRAM_LIMIT = 5e7

# Up to this ratio, products with G = M^(-1/2) keep float32's precision when computed in float32:
# their error is about 6e-8 times the ratio of the singular values, which is the root of this ratio.
# And only for s between 1 / FLOAT_SCALE and FLOAT_SCALE: the derivative has 1 / s² in it.
FLOAT_LIMIT = 64.0
FLOAT_SCALE = 1e6
