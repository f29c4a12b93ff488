/* Eigenvalues and eigenvectors of a symmetric matrix, in double precision. */
#ifndef EIGEN_H
#define EIGEN_H

#include "lanes.h"

/* In eight sums side by side, of which the compiler can make vectors. */
INLINE double dot(const double *a, const double *b, Index n)
{
    double sum[8] = {0};
    Index i = 0;
    for (; i + 8 <= n; i += 8)
        for (int v = 0; v < 8; v++) sum[v] += a[i + v] * b[i + v];
    for (; i < n; i++) sum[0] += a[i] * b[i];
    return ((sum[0] + sum[1]) + (sum[2] + sum[3])) + ((sum[4] + sum[5]) + (sum[6] + sum[7]));
}

/* M (n × n, overwritten) = V diag(values) Vᵀ, with V's columns, the eigenvectors, as the rows of
   V_t. `workspace` holds n * (n + 3) numbers. Returns 0, or 1 where it does not converge. */
int eigen(double *M, Index n, double *values, double *V_t, double *workspace);

#endif
