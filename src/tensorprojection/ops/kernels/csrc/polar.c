/* U = W (WᵀW + ε²I)^(-1/2) and its derivative, in double precision where it matters.

   The letters are those of polar.py: M = WᵀW + ε²I = V diag(s²) Vᵀ, G = M^(-1/2).

   Note [Two ways to V and s]
       From M, by its eigenvectors. M has the square of W's condition number, so this way is given
       up where the ratio of M's eigenvalues exceeds `GRAM_LIMIT`. Or from W itself, by one-sided
       Jacobi rotations: pairs of W's columns are rotated in their plane until all are orthogonal.
       Then nothing is lost of W's smallest directions, however large its condition number, and for
       a few columns it is also the faster way.
*/
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "eigen.h"
#include "kernels.h"

#define SEGMENT 64 /* rows of a tall matrix that are processed at a time */

/* The rows and columns of a small matrix in memory: q, rounded up to a multiple of LANES. */
INLINE Index padded(Index q) { return block_count(q, LANES) * LANES; }

#define REAL float
#define NAME(x) x##_float
#include "tall.h"
#undef REAL
#undef NAME
#define REAL double
#define NAME(x) x##_double
#include "tall.h"
#undef REAL
#undef NAME

#define FEW_COLUMNS 8 /* up to so many, rotations are the faster way */
#define SWEEPS 60
#define ORTHOGONAL 1e-15 /* the cosine of two columns below which they count as orthogonal */
#define NOTHING 1e-40    /* the ratio of a column's square to the largest below which it is noise */

static void rotate(double *a, double *b, Index n, double cosine, double sine)
{
    for (Index i = 0; i < n; i++) {
        double x = a[i], y = b[i];
        a[i] = cosine * x - sine * y;
        b[i] = sine * x + cosine * y;
    }
}

/* Rotates the rows of A (q × p) until they are orthogonal, and those of V_t (q × q) with them.
   `squares` receives the squares of the rows' lengths. Returns whether it has converged. */
static int orthogonalise(double *A, double *V_t, double *squares, Index p, Index q)
{
    double negligible = ORTHOGONAL * ORTHOGONAL * (double)p;
    for (int sweep = 0; sweep < SWEEPS; sweep++) {
        int rotated = 0;
        double largest = 0;
        for (Index i = 0; i < q; i++) {
            squares[i] = dot(A + i * p, A + i * p, p);
            largest = squares[i] > largest ? squares[i] : largest;
        }
        for (Index i = 0; i < q; i++)
            for (Index j = i + 1; j < q; j++) {
                if (squares[i] <= NOTHING * largest || squares[j] <= NOTHING * largest) continue;
                double *a = A + i * p, *b = A + j * p, ab = dot(a, b, p);
                if (!(ab * ab > negligible * squares[i] * squares[j])) continue;
                rotated = 1;
                double zeta = (squares[j] - squares[i]) / (2 * ab);
                double tangent = copysign(1.0, zeta) / (fabs(zeta) + sqrt(1 + zeta * zeta));
                double cosine = 1 / sqrt(1 + tangent * tangent), sine = cosine * tangent;
                rotate(a, b, p, cosine, sine);
                rotate(V_t + i * q, V_t + j * q, q, cosine, sine);
                squares[i] -= tangent * ab;
                squares[j] += tangent * ab;
            }
        if (!rotated) return 1;
    }
    return 0;
}

/* The end of both ways: V and s, ascending, from rows of V_t and squares of s in any order. */
static void sorted(const double *V_t, const double *squares, double *V, double *s, Index q)
{
    for (Index i = 0; i < q; i++) {
        Index rank = 0;
        for (Index j = 0; j < q; j++)
            rank += squares[j] < squares[i] || (squares[j] == squares[i] && j < i);
        s[rank] = sqrt(squares[i]);
        for (Index j = 0; j < q; j++) V[j * q + rank] = V_t[i * q + j];
    }
}

/* G = V diag(1/s) Vᵀ, padded. `workspace`: 2 n² numbers, n = padded(q). */
static void inverse_root(const double *V, const double *s, double *G, Index q, double *workspace)
{
    Index n = padded(q);
    double *scaled = workspace, *V_t = workspace + n * n;
    memset(V_t, 0, n * n * sizeof(double));
    memset(G, 0, n * n * sizeof(double));
    for (Index i = 0; i < q; i++)
        for (Index k = 0; k < q; k++) {
            scaled[i * n + k] = V[i * q + k] / s[k];
            V_t[k * n + i] = V[i * q + k];
        }
    add_product_double(scaled, n, 1, V_t, G, q, q, n, 0);
}

static int float_suffices(const double *s, Index q)
{
    int in_range = s[0] >= 1 / FLOAT_SCALE && s[q - 1] <= FLOAT_SCALE;
    return in_range && s[q - 1] * s[q - 1] <= FLOAT_LIMIT * s[0] * s[0];
}

/* By M's eigenvectors. `workspace`: (3 n + 3) n numbers, n = padded(q), in which G is left, padded.
   Returns whether this way was good enough. */
static int by_gram(
    const Threads *threads, const float *W, Index p, Index q, double eps, int relative, float *U,
    double *V, double *s, double *workspace)
{
    Index n = padded(q);
    double *M = workspace, *V_t = M + n * n, *squares = V_t + q * q, *rest = squares + n;
    if (transposed_product_double(threads, W, W, M, p, q)) return 0;
    for (Index i = 0; i < q; i++) memmove(M + i * q, M + i * n, q * sizeof(double));
    for (Index i = 0; i < q; i++)
        for (Index j = 0; j < i; j++) M[i * q + j] = M[j * q + i];
    double trace = 0;
    for (Index i = 0; i < q; i++) trace += M[i * q + i];
    double shift = eps * eps * (relative ? trace / (double)q : 1.0);
    for (Index i = 0; i < q; i++) M[i * q + i] += shift;
    if (!(trace + shift < INFINITY) || eigen(M, q, squares, V_t, rest)) return 0;
    double low = INFINITY, high = 0;
    for (Index i = 0; i < q; i++) {
        low = squares[i] < low ? squares[i] : low;
        high = squares[i] > high ? squares[i] : high;
    }
    if (!(low > 0) || !(high <= GRAM_LIMIT * low)) return 0;
    sorted(V_t, squares, V, s, q);
    inverse_root(V, s, workspace, q, workspace + n * n);
    return !(float_suffices(s, q) ? sum_of_products_float : sum_of_products_double)(
        threads, W, workspace, NULL, NULL, U, p, q);
}

/* By rotations. `workspace`: 2 p q + 2 q² + q numbers. */
static int by_rotations(
    const float *W, Index p, Index q, double eps, int relative, float *U, double *V, double *s,
    double *workspace)
{
    double *A = workspace, *V_t = A + p * q, *squares = V_t + q * q, *scaled = squares + q;
    double *product = scaled + q * q, norm = 0;
    for (Index i = 0; i < p; i++)
        for (Index k = 0; k < q; k++) {
            double w = W[i * q + k];
            A[k * p + i] = w;
            norm += w * w;
        }
    double shift = eps * eps * (relative ? norm / (double)q : 1.0);
    memset(V_t, 0, q * q * sizeof(double));
    for (Index k = 0; k < q; k++) V_t[k * q + k] = 1;
    if (!(norm < INFINITY) || !(shift > 0) || !orthogonalise(A, V_t, squares, p, q)) return 0;
    for (Index k = 0; k < q; k++) squares[k] += shift;
    /* U = A diag(1/s) Vᵀ, where A and V are transposed here. */
    for (Index k = 0; k < q; k++)
        for (Index j = 0; j < q; j++) scaled[k * q + j] = V_t[k * q + j] / sqrt(squares[k]);
    memset(product, 0, p * q * sizeof(double));
    for (Index i = 0; i < p; i++)
        for (Index k = 0; k < q; k++)
            for (Index j = 0; j < q; j++) product[i * q + j] += A[k * p + i] * scaled[k * q + j];
    for (Index e = 0; e < p * q; e++) U[e] = (float)product[e];
    sorted(V_t, squares, V, s, q);
    return 1;
}

int tp_polar(
    Parallel parallel, Index count, const float *W, Index p, Index q, double eps, int relative,
    float *U, double *G, double *V, double *s)
{
    Index n = padded(q), small = p * q <= ROTATIONS_LIMIT;
    Threads threads = {parallel, p * q <= ONE_THREAD ? 1 : count};
    double *workspace = malloc((3 * n * n + 3 * n + (small ? 2 * p * q : 0)) * sizeof(double));
    if (!workspace) return 1;
    int few = q <= FEW_COLUMNS && small;
    int found = !few && by_gram(&threads, W, p, q, eps, relative, U, V, s, workspace);
    if (!found && small && (found = by_rotations(W, p, q, eps, relative, U, V, s, workspace)))
        inverse_root(V, s, workspace, q, workspace + n * n);
    for (Index i = 0; found && i < q; i++) memcpy(G + i * q, workspace + i * n, q * sizeof(double));
    free(workspace);
    return !found;
}

/* With N = Wᵀ dU in the basis V, S_ij = -(N + Nᵀ)_ij / (s_i s_j (s_i + s_j)), to whose diagonal a
   relative ε adds ε²/q times the trace of S: dL/dW = dU G + W V S Vᵀ. */
int tp_polar_grad(
    Parallel parallel, Index count, const float *W, const float *dU, const double *G,
    const double *V, const double *s, Index p, Index q, double eps, int relative, float *dW)
{
    Index n = padded(q);
    Threads threads = {parallel, p * q <= ONE_THREAD ? 1 : count};
    double *workspace = calloc(5 * n * n, sizeof(double));
    if (!workspace) return 1;
    double *N = workspace, *S = N + n * n, *wide = S + n * n, *rotated = wide + n * n;
    double *padded_G = rotated + n * n;
    int precise = !float_suffices(s, q);
    int failed = (precise ? transposed_product_double : transposed_product_float)(
        &threads, W, dU, N, p, q);
    for (Index i = 0; i < q; i++) {
        memcpy(wide + i * n, V + i * q, q * sizeof(double));
        memcpy(padded_G + i * n, G + i * q, q * sizeof(double));
    }
    add_product_double(N, n, 1, wide, rotated, q, q, n, 0); /* N V */
    memset(N, 0, n * n * sizeof(double));
    add_product_double(wide, 1, n, rotated, N, q, q, n, 0); /* Vᵀ N V */
    double trace = 0;
    for (Index i = 0; i < q; i++) {
        for (Index j = 0; j < q; j++)
            S[i * n + j] = -(N[i * n + j] + N[j * n + i]) / (s[i] * s[j] * (s[i] + s[j]));
        trace += S[i * n + i];
    }
    for (Index i = 0; relative && i < q; i++) S[i * n + i] += eps * eps / (double)q * trace;
    memset(rotated, 0, n * n * sizeof(double));
    add_product_double(wide, n, 1, S, rotated, q, q, n, 0); /* V S */
    for (Index i = 0; i < q; i++)
        for (Index j = 0; j < q; j++) wide[j * n + i] = V[i * q + j];
    memset(S, 0, n * n * sizeof(double));
    add_product_double(rotated, n, 1, wide, S, q, q, n, 0); /* V S Vᵀ */
    if (!failed)
        failed = (precise ? sum_of_products_double : sum_of_products_float)(
            &threads, dU, padded_G, W, S, dW, p, q);
    free(workspace);
    return failed;
}
