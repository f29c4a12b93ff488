/* Eigenvalues and eigenvectors of a symmetric matrix, in double precision. */
#ifndef EIGEN_H
#define EIGEN_H

#include "lanes.h"

/* M (n × n, overwritten) = V diag(values) Vᵀ, with V's columns, the eigenvectors, as the rows of
   V_t. `room` holds n * (n + 3) numbers. Returns 0, or 1 where it does not converge. */
int eigen(double *M, Index n, double *values, double *V_t, double *room);

#endif
