/* U = W (WᵀW + ε²I)^(-1/2) and its derivative for small W, in double precision.

   The letters are those of polar.py: M = WᵀW + ε²I = V diag(s²) Vᵀ.

   Note [Rotations of W, not of M]
       V is found by one-sided Jacobi rotations: pairs of W's columns are turned in their plane
       until all are orthogonal, W V = A. M is never formed, so nothing is lost of W's smallest
       directions whatever its condition. For matrices of this size it takes microseconds, a tenth
       of what the calls of a LAPACK through torch do.
*/
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "lanes.h"

#define SWEEPS 60
#define ORTHOGONAL 1e-15 /* the cosine of two columns below which they are left alone */

static double dot(const double *a, const double *b, Index n)
{
    double sum[4] = {0};
    Index i = 0;
    for (; i + 4 <= n; i += 4)
        for (int v = 0; v < 4; v++) sum[v] += a[i + v] * b[i + v];
    for (; i < n; i++) sum[0] += a[i] * b[i];
    return (sum[0] + sum[1]) + (sum[2] + sum[3]);
}

static void rotate(double *a, double *b, Index n, double cosine, double sine)
{
    for (Index i = 0; i < n; i++) {
        double x = a[i], y = b[i];
        a[i] = cosine * x - sine * y;
        b[i] = sine * x + cosine * y;
    }
}

/* Turns the rows of A (q × p) until they are orthogonal, and those of V (q × q) with them. */
static int orthogonalise(double *A, double *V, Index p, Index q)
{
    for (int sweep = 0; sweep < SWEEPS; sweep++) {
        int turned = 0;
        for (Index i = 0; i < q; i++)
            for (Index j = i + 1; j < q; j++) {
                double *a = A + i * p, *b = A + j * p;
                double aa = dot(a, a, p), bb = dot(b, b, p), ab = dot(a, b, p);
                if (!(fabs(ab) > ORTHOGONAL * (double)p * sqrt(aa) * sqrt(bb))) continue;
                turned = 1;
                double zeta = (bb - aa) / (2 * ab);
                double tangent = copysign(1.0, zeta) / (fabs(zeta) + hypot(1.0, zeta));
                double cosine = 1 / hypot(1.0, tangent), sine = cosine * tangent;
                rotate(a, b, p, cosine, sine);
                rotate(V + i * q, V + j * q, q, cosine, sine);
            }
        if (!turned) return 1;
    }
    return 0;
}

/* C (n × m) = A (n × k) B (k × m). */
static void multiply(const double *A, const double *B, double *C, Index n, Index k, Index m)
{
    for (Index i = 0; i < n; i++) {
        double *c = C + i * m;
        memset(c, 0, m * sizeof(double));
        for (Index l = 0; l < k; l++) {
            double a = A[i * k + l];
            const double *b = B + l * m;
            for (Index j = 0; j < m; j++) c[j] += a * b[j];
        }
    }
}

static void transpose(const double *A, double *A_t, Index n, Index m)
{
    for (Index i = 0; i < n; i++)
        for (Index j = 0; j < m; j++) A_t[j * n + i] = A[i * m + j];
}

/* Where row i of the result is taken from, for s ascending. */
static void ascending(const double *s, Index *from, Index q)
{
    for (Index i = 0; i < q; i++) {
        Index j = i;
        for (; j > 0 && s[from[j - 1]] > s[i]; j--) from[j] = from[j - 1];
        from[j] = i;
    }
}

/* U (p × q), G = M^(-1/2), V and s ascending, from W (p × q). Returns 0, or 1 where W is not
   finite, vanishes, or does not yield, or there is no memory. */
int tp_polar(
    const float *W, Index p, Index q, double eps, int relative, float *U, double *G, double *V,
    double *s)
{
    double *memory = malloc((2 * p * q + 2 * q * q + q) * sizeof(double) + q * sizeof(Index));
    if (!memory) return 1;
    double *A = memory, *V_t = A + p * q, *scaled = V_t + q * q, *root = scaled + q * q;
    double *product = root + q;
    Index *from = (Index *)(product + p * q);
    double square = 0;
    for (Index i = 0; i < p; i++)
        for (Index k = 0; k < q; k++) {
            double w = W[i * q + k];
            A[k * p + i] = w;
            square += w * w;
        }
    double shift = eps * eps * (relative ? square / (double)q : 1.0);
    memset(V_t, 0, q * q * sizeof(double));
    for (Index k = 0; k < q; k++) V_t[k * q + k] = 1;
    int failed = !(square < INFINITY) || !(shift > 0) || !orthogonalise(A, V_t, p, q);
    if (!failed) {
        for (Index k = 0; k < q; k++) root[k] = sqrt(dot(A + k * p, A + k * p, p) + shift);
        ascending(root, from, q);
        /* U = A diag(1/s) Vᵀ, G = V diag(1/s) Vᵀ; here A and V are transposed. */
        for (Index k = 0; k < q; k++)
            for (Index j = 0; j < q; j++) scaled[k * q + j] = V_t[k * q + j] / root[k];
        memset(product, 0, p * q * sizeof(double));
        memset(G, 0, q * q * sizeof(double));
        for (Index k = 0; k < q; k++) {
            for (Index i = 0; i < p; i++)
                for (Index j = 0; j < q; j++) product[i * q + j] += A[k * p + i] * scaled[k * q + j];
            for (Index i = 0; i < q; i++)
                for (Index j = 0; j < q; j++) G[i * q + j] += V_t[k * q + i] * scaled[k * q + j];
        }
        for (Index e = 0; e < p * q; e++) U[e] = (float)product[e];
        for (Index k = 0; k < q; k++) {
            s[k] = root[from[k]];
            for (Index j = 0; j < q; j++) V[j * q + k] = V_t[from[k] * q + j];
        }
    }
    free(memory);
    return failed;
}

/* dL/dW from dL/dU, all of p × q. Returns 0, or 1 where there is no memory.

   In the basis V, with B = dU V, A = W V and C_ij = (AᵀB)_ij / (s_i s_j (s_i + s_j)):
   dL/dW = (B diag(1/s) - A (C + Cᵀ)) Vᵀ; a relative ε adds ε²/q tr(C + Cᵀ) to the diagonal. */
int tp_polar_grad(
    const float *W, const float *dU, const double *V, const double *s, Index p, Index q, double eps,
    int relative, float *dW)
{
    double *memory = malloc((5 * p * q + 2 * q * q) * sizeof(double));
    if (!memory) return 1;
    double *wide = memory, *A = wide + p * q, *B = A + p * q, *A_t = B + p * q, *AS = A_t + p * q;
    double *C = AS + p * q, *S = C + q * q;
    for (Index e = 0; e < p * q; e++) wide[e] = W[e];
    multiply(wide, V, A, p, q, q);
    for (Index e = 0; e < p * q; e++) wide[e] = dU[e];
    multiply(wide, V, B, p, q, q);
    transpose(A, A_t, p, q);
    multiply(A_t, B, C, q, p, q);
    double trace = 0;
    for (Index i = 0; i < q; i++) {
        for (Index j = 0; j < q; j++)
            S[i * q + j] = (C[i * q + j] + C[j * q + i]) / (s[i] * s[j] * (s[i] + s[j]));
        trace += S[i * q + i];
    }
    for (Index i = 0; relative && i < q; i++) S[i * q + i] += eps * eps / (double)q * trace;
    multiply(A, S, AS, p, q, q);
    for (Index i = 0; i < p; i++)
        for (Index j = 0; j < q; j++) B[i * q + j] = B[i * q + j] / s[j] - AS[i * q + j];
    transpose(V, C, q, q);
    multiply(B, C, wide, p, q, q);
    for (Index e = 0; e < p * q; e++) dW[e] = (float)wide[e];
    free(memory);
    return 0;
}
