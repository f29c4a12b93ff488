"""The paper's Proposition 1 in float64, as the Kronecker products it is written in.

NumPy only, nothing from the library: what the library computes is compared with this. Modes count
from 1, `vec` and unfoldings are Fortran-ordered, and names and equation numbers are the paper's.
The proposition is stated for order three; here the order is any.
"""

from functools import cache, reduce

import numpy as np


def vec(X):
    """Appendix C."""
    return X.reshape(-1, order="F")


def unvec(x, shape):
    return x.reshape(shape, order="F")


def unfold(X, k):
    """X_(k), appendix D.2.1: mode k first, then the other modes in their order."""
    return np.moveaxis(X, k - 1, 0).reshape(X.shape[k - 1], -1, order="F")


def kron(*matrices):
    """A_1 ⊗ A_2 ⊗ …; the number 1 where there is none."""
    return reduce(np.kron, matrices, np.eye(1))


def commutation(m, n):
    """K_{m,n}: vec(Aᵀ) = K vec(A) for every m × n matrix A."""
    K = np.zeros((m * n, m * n))
    for i in range(m):
        for j in range(n):
            K[i * n + j, j * m + i] = 1
    return K


def permutation(k, shape):
    """P^(k): vec(Z) = P vec(Z_(k)) for every tensor Z of this shape."""
    numbers = unvec(np.arange(np.prod(shape)), shape)
    P = np.zeros((numbers.size, numbers.size))
    P[vec(unfold(numbers, k)), np.arange(numbers.size)] = 1
    return P


def power(M, exponent):
    """M^exponent of a symmetric positive definite matrix."""
    squares, V = np.linalg.eigh(M)
    return (V * squares**exponent) @ V.T


# U and its derivative with respect to W (Eq. 3, Eqs. 9 to 12)


def gram(W, eps):
    """M = WᵀW + ε²I."""
    return W.T @ W + eps**2 * np.eye(W.shape[1])


def polar(W, eps):
    """U = W G, G = M^(-1/2) (Eq. 3)."""
    return W @ power(gram(W, eps), -1 / 2)


def dG_dM(M):
    """∂vec(G)/∂vec(M)ᵀ: Eq. 11 as corrected by the authors in October 2025.

    From HH = M follows H dH + dH H = dM, that is (I ⊗ H + H ⊗ I) vec(dH) = vec(dM); and from
    G = H^(-1) follows dG = -G dH G.
    """
    H, G, eye = power(M, 1 / 2), power(M, -1 / 2), np.eye(len(M))
    return -kron(G, G) @ np.linalg.inv(kron(eye, H) + kron(H, eye))


def dG_dM_as_printed(M):
    """Eq. 11 as the paper prints it: wrong unless dM commutes with M."""
    return -1 / 2 * kron(power(M, -3 / 4), power(M, -3 / 4))


def dM_dW(W):
    """Eq. 12."""
    q = W.shape[1]
    half = kron(np.eye(q), W.T)
    return commutation(q, q) @ half + half


def dU_dW(W, eps, eq11=dG_dM):
    """Eqs. 9 and 10."""
    p, q = W.shape
    M = gram(W, eps)
    dG_dW = eq11(M) @ dM_dW(W)
    return kron(power(M, -1 / 2).T, np.eye(p)) + kron(np.eye(q), W) @ dG_dW


# The same for a W of any size and condition: by the singular values, without forming WᵀW


def shift(W, eps, eps_mode):
    """What is added to the diagonal of WᵀW: ε², or ε² times the mean square singular value."""
    return eps**2 if eps_mode == "absolute" else eps**2 * np.sum(W**2) / W.shape[1]


def polar_by_svd(W, eps, eps_mode="absolute"):
    """W = P diag(σ) Qᵀ gives U = P diag(σ / sqrt(σ² + ε²)) Qᵀ."""
    P, sigma, Qt = np.linalg.svd(W, full_matrices=False)
    return P * (sigma / np.sqrt(sigma**2 + shift(W, eps, eps_mode))) @ Qt


def polar_gradient(W, eps, dL_dU, eps_mode="absolute"):
    """∂L/∂W by the corrected Eq. 11 in the eigenbasis of M: dG_ij = -dM_ij / (s_i s_j (s_i + s_j)).

    With a relative ε the shift is a function of W as well, and has a part of its own.
    """
    _, sigma, Qt = np.linalg.svd(W, full_matrices=False)
    s = np.sqrt(sigma**2 + shift(W, eps, eps_mode))
    G = Qt.T / s @ Qt
    dL_dG = W.T @ dL_dU
    dL_dM = -Qt.T @ (Qt @ dL_dG @ Qt.T / (np.outer(s, s) * np.add.outer(s, s))) @ Qt
    dL_dW = dL_dU @ G + W @ (dL_dM + dL_dM.T)
    if eps_mode == "relative":
        dL_dW += np.trace(dL_dM) * eps**2 / W.shape[1] * 2 * W
    return dL_dW


# The projection Z = X ×_1 U_1ᵀ ×_2 U_2ᵀ … (Eq. 1) and its derivatives (Eqs. 4, 6 to 8)


def project(X, Us):
    """Eq. 1, by vec(Z) = (… ⊗ U_2ᵀ ⊗ U_1ᵀ) vec(X)."""
    return unvec(dZ_dX(Us) @ vec(X), [U.shape[1] for U in Us])


def dZ_dX(Us):
    """Eq. 4."""
    return kron(*(U.T for U in reversed(Us)))


def dZ_dU(X, Us, k):
    """Eqs. 6 to 8."""
    p, q = Us[k - 1].shape
    others = kron(*(U.T for U in reversed(Us[: k - 1] + Us[k:])))
    P = permutation(k, [U.shape[1] for U in Us])
    return P @ kron(others @ unfold(X, k).T, np.eye(q)) @ commutation(p, q)


# The transposed projection Z = X ×_1 U_1 ×_2 U_2 … (Eq. 13); its derivatives follow likewise


def back_project(X, Us):
    """Eq. 13."""
    return unvec(dZ_dX_transposed(Us) @ vec(X), [U.shape[0] for U in Us])


def dZ_dX_transposed(Us):
    return kron(*reversed(Us))


def dZ_dU_transposed(X, Us, k):
    """Z_(k) = U_k X_(k) (… ⊗ …)ᵀ: U_k is not transposed, so no commutation matrix is needed."""
    p = Us[k - 1].shape[0]
    others = kron(*reversed(Us[: k - 1] + Us[k:]))
    P = permutation(k, [U.shape[0] for U in Us])
    return P @ kron(others @ unfold(X, k).T, np.eye(p))


# The layer: W -> U -> Z, and Proposition 1


def projections(Ws, eps, sizes):
    """The U's; a mode left alone (W is None) has the identity."""
    return [np.eye(p) if W is None else polar(W, eps) for W, p in zip(Ws, sizes, strict=True)]


def forward(Xs, Ws, eps, transposed=False):
    """The layer's output for a batch Xs of shape (n, p_1, p_2, …)."""
    Us = projections(Ws, eps, Xs.shape[1:])
    return np.stack([(back_project if transposed else project)(X, Us) for X in Xs])


def proposition1(Xs, Ws, eps, dL_dZs, transposed=False, eq11=dG_dM):
    """∂L/∂X of a batch (Eq. 4), and ∂L/∂W_k of each mode (Eq. 5); None for a mode left alone."""
    Us = projections(Ws, eps, Xs.shape[1:])
    to_X = (dZ_dX_transposed if transposed else dZ_dX)(Us)
    to_U = dZ_dU_transposed if transposed else dZ_dU
    dL_dXs = np.stack([unvec(vec(dL_dZ) @ to_X, Xs.shape[1:]) for dL_dZ in dL_dZs])
    dL_dWs = []
    for k, W in enumerate(Ws, start=1):
        if W is None:
            dL_dWs.append(None)
            continue
        to_W = dU_dW(W, eps, eq11)
        rows = [vec(dL_dZ) @ to_U(X, Us, k) @ to_W for X, dL_dZ in zip(Xs, dL_dZs, strict=True)]
        dL_dWs.append(unvec(np.sum(rows, axis=0), W.shape))
    return dL_dXs, dL_dWs


# Matrices to try it on.


@cache
def orthonormal(p, q, seed=0):
    return np.linalg.qr(np.random.default_rng(seed).standard_normal((p, q)))[0]


def with_singular_values(p, sigma, seed=0):
    """A p × len(sigma) matrix with these singular values."""
    q = len(sigma)
    return orthonormal(p, q, seed) * sigma @ orthonormal(q, q, seed + 1).T
