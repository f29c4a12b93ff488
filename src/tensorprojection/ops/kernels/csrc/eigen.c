/* Reflections make M tridiagonal, T = Qᵀ M Q; implicit QL steps then make T diagonal.

   Everything that takes time goes along rows. For about sixty rows this is twice as fast as LAPACK,
   whose calls and blocks are made for larger matrices.
*/
#include "eigen.h"

#include <float.h>
#include <math.h>
#include <string.h>

#define STEPS 60 /* per eigenvalue, at most */

/* beta of the reflection I - beta v vᵀ that takes the given vector to a multiple of the first axis;
   v takes its place. */
static double reflection(double *v, Index n, double *multiple)
{
    double tail = dot(v + 1, v + 1, n - 1);
    *multiple = v[0];
    if (tail == 0) return 0;
    double length = sqrt(v[0] * v[0] + tail);
    *multiple = v[0] > 0 ? -length : length;
    v[0] -= *multiple;
    return 2 / (v[0] * v[0] + tail);
}

/* T as its diagonal and the one beside it; row k of `vectors` and betas[k] are reflection k. */
static void tridiagonal(
    double *M, Index n, double *diagonal, double *beside, double *vectors, double *betas, double *w)
{
    for (Index k = 0; k < n; k++) {
        diagonal[k] = M[k * n + k];
        if (k + 1 == n) break;
        Index rest = n - k - 1;
        double *v = vectors + k * n + k + 1, *block = M + (k + 1) * n + k + 1;
        memcpy(v, M + k * n + k + 1, rest * sizeof(double));
        double beta = betas[k] = reflection(v, rest, &beside[k]);
        if (beta == 0) continue;
        for (Index i = 0; i < rest; i++) w[i] = beta * dot(block + i * n, v, rest);
        double half = beta / 2 * dot(w, v, rest);
        for (Index i = 0; i < rest; i++) w[i] -= half * v[i];
        for (Index i = 0; i < rest; i++) {
            double *row = block + i * n, a = v[i], b = w[i];
            for (Index j = 0; j < rest; j++) row[j] -= a * w[j] + b * v[j];
        }
    }
}

/* Q, the product of the reflections. */
static void product_of_reflections(
    double *Q, Index n, const double *vectors, const double *betas, double *t)
{
    memset(Q, 0, n * n * sizeof(double));
    for (Index i = 0; i < n; i++) Q[i * n + i] = 1;
    for (Index k = n - 1; k-- > 0;) {
        if (betas[k] == 0) continue;
        Index rest = n - k - 1;
        const double *v = vectors + k * n + k + 1;
        double *block = Q + (k + 1) * n + k + 1;
        memset(t, 0, rest * sizeof(double));
        for (Index i = 0; i < rest; i++)
            for (Index j = 0; j < rest; j++) t[j] += v[i] * block[i * n + j];
        for (Index i = 0; i < rest; i++) {
            double a = betas[k] * v[i];
            for (Index j = 0; j < rest; j++) block[i * n + j] -= a * t[j];
        }
    }
}

/* The first m >= l at which T splits into two blocks: T[m][m + 1] is negligible. */
static Index end_of_block(const double *d, const double *e, Index l, Index n)
{
    Index m = l;
    while (m + 1 < n && fabs(e[m]) > DBL_EPSILON * (fabs(d[m]) + fabs(d[m + 1]))) m++;
    return m;
}

/* One QL step on T's rows l to m, with an implicit shift; the rows of V_t are rotated along. */
static void ql_step(double *d, double *e, double *V_t, Index l, Index m, Index n)
{
    double g = (d[l + 1] - d[l]) / (2 * e[l]), r = sqrt(g * g + 1);
    g = d[m] - d[l] + e[l] / (g + copysign(r, g));
    double s = 1, c = 1, p = 0;
    for (Index i = m; i-- > l;) {
        double f = s * e[i], b = c * e[i];
        e[i + 1] = r = sqrt(f * f + g * g);
        if (r == 0) { /* T has split on the way */
            d[i + 1] -= p;
            e[m] = 0;
            return;
        }
        s = f / r, c = g / r;
        g = d[i + 1] - p;
        r = (d[i] - g) * s + 2 * c * b;
        p = s * r;
        d[i + 1] = g + p;
        g = c * r - b;
        double *above = V_t + i * n, *below = above + n;
        for (Index k = 0; k < n; k++) {
            double x = above[k], y = below[k];
            above[k] = c * x - s * y;
            below[k] = s * x + c * y;
        }
    }
    d[l] -= p;
    e[l] = g;
    e[m] = 0;
}

int eigen(double *M, Index n, double *values, double *V_t, double *workspace)
{
    double *e = workspace, *betas = e + n, *w = betas + n, *vectors = w + n;
    tridiagonal(M, n, values, e, vectors, betas, w);
    product_of_reflections(M, n, vectors, betas, w);
    for (Index i = 0; i < n; i++)
        for (Index j = 0; j < n; j++) V_t[j * n + i] = M[i * n + j];
    e[n - 1] = 0;
    for (Index l = 0; l < n; l++) {
        int steps = 0;
        for (Index m; (m = end_of_block(values, e, l, n)) > l;) {
            if (steps++ == STEPS) return 1;
            ql_step(values, e, V_t, l, m, n);
        }
    }
    return 0;
}
