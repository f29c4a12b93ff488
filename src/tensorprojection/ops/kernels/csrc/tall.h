/* Products of tall matrices, p × q with q small, in the precision REAL.

   Included once per precision, with REAL and NAME(x), the names of its functions, defined. Tall
   matrices are float. Small ones are double, and padded: `padded(q)` rows and columns, with zeros
   beyond q.
*/

#define WIDE (4 * WIDTH / (Index)sizeof(REAL)) /* numbers in a vector */
typedef REAL NAME(Vec) __attribute__((vector_size(4 * WIDTH), aligned(sizeof(REAL)), may_alias));

INLINE void NAME(block)(
    const int rows, const REAL *A, Index row, Index column, const REAL *B, REAL *C, Index n,
    Index K)
{
    NAME(Vec) sum[6][2];
    UNROLL for (int r = 0; r < rows; r++) {
        sum[r][0] = *(NAME(Vec) *)(C + r * n);
        sum[r][1] = *(NAME(Vec) *)(C + r * n + WIDE);
    }
    for (Index k = 0; k < K; k++) {
        NAME(Vec) b0 = *(const NAME(Vec) *)(B + k * n), b1 = *(const NAME(Vec) *)(B + k * n + WIDE);
        UNROLL for (int r = 0; r < rows; r++) {
            NAME(Vec) a = A[r * row + k * column] - (NAME(Vec)){0};
            sum[r][0] += a * b0;
            sum[r][1] += a * b1;
        }
    }
    UNROLL for (int r = 0; r < rows; r++) {
        *(NAME(Vec) *)(C + r * n) = sum[r][0];
        *(NAME(Vec) *)(C + r * n + WIDE) = sum[r][1];
    }
}

/* C (M × n) += A B, for A (M × K) with these strides of its rows and columns; n is padded. If the
   result is known to be symmetric, what is well below the diagonal is left out. */
static void NAME(add_product)(
    const REAL *A, Index row, Index column, const REAL *B, REAL *C, Index M, Index K, Index n,
    int symmetric)
{
    Index blocks = block_count(M, 6);
    for (Index i = 0; i < blocks; i++) {
        Index r = start_of(i, M, blocks), rows = start_of(i + 1, M, blocks) - r;
        for (Index j = symmetric ? r / (2 * WIDE) * 2 * WIDE : 0; j < n; j += 2 * WIDE) {
#define CASE(R) \
    case R: \
        NAME(block)(R, A + r * row, row, column, B + j, C + r * n + j, n, K); \
        break;
            switch (rows) {
                CASE(1) CASE(2) CASE(3) CASE(4) CASE(5) CASE(6)
            }
#undef CASE
        }
    }
}

static void NAME(widen)(const float *A, REAL *to, Index rows, Index q, Index n)
{
    memset(to, 0, rows * n * sizeof(REAL));
    for (Index i = 0; i < rows; i++)
        for (Index k = 0; k < q; k++) to[i * n + k] = (REAL)A[i * q + k];
}

typedef struct {
    const float *A[2];
    REAL *B[2]; /* n × n */
    double *sums;
    float *out;
    Index p, q, pieces, next;
    int failed;
} NAME(Tall);

static void NAME(work)(void *data)
{
    NAME(Tall) *job = data;
    Index q = job->q, n = padded(q);
    REAL *a = aligned_alloc(64, (2 * SEGMENT * n + n * n) * sizeof(REAL));
    if (!a) {
        job->failed = 1;
        return;
    }
    REAL *b = a + SEGMENT * n, *c = b + SEGMENT * n;
    for (Index piece; (piece = take(&job->next)) < job->pieces;) {
        Index from = piece * SEGMENT, rows = at_most(job->p - from, SEGMENT);
        NAME(widen)(job->A[0] + from * q, a, rows, q, n);
        if (job->sums) { /* A0ᵀ A1 */
            int same = job->A[0] == job->A[1];
            if (!same) NAME(widen)(job->A[1] + from * q, b, rows, q, n);
            memset(c, 0, n * n * sizeof(REAL));
            NAME(add_product)(a, 1, n, same ? a : b, c, q, rows, n, same);
            for (Index e = 0; e < n * n; e++) job->sums[piece * n * n + e] = c[e];
            continue;
        }
        memset(b, 0, rows * n * sizeof(REAL));
        NAME(add_product)(a, n, 1, job->B[0], b, rows, q, n, 0);
        if (job->A[1]) {
            NAME(widen)(job->A[1] + from * q, a, rows, q, n);
            NAME(add_product)(a, n, 1, job->B[1], b, rows, q, n, 0);
        }
        for (Index i = 0; i < rows; i++)
            for (Index k = 0; k < q; k++) job->out[(from + i) * q + k] = (float)b[i * n + k];
    }
    free(a);
}

/* A0ᵀ A1; if they are the same matrix, only on and above the diagonal. */
static int NAME(transposed_product)(
    const Threads *threads, const float *A0, const float *A1, double *result, Index p, Index q)
{
    Index n = padded(q);
    NAME(Tall) job = {.A = {A0, A1}, .p = p, .q = q, .pieces = block_count(p, SEGMENT)};
    job.sums = malloc(job.pieces * n * n * sizeof(double));
    if (!job.sums) return 1;
    run(threads, NAME(work), &job);
    memcpy(result, job.sums, n * n * sizeof(double));
    for (Index piece = 1; piece < job.pieces; piece++)
        for (Index e = 0; e < n * n; e++) result[e] += job.sums[piece * n * n + e];
    free(job.sums);
    return job.failed;
}

/* A0 B0 + A1 B1, or A0 B0 alone where A1 is null. */
static int NAME(sum_of_products)(
    const Threads *threads, const float *A0, const double *B0, const float *A1, const double *B1,
    float *out, Index p, Index q)
{
    Index n = padded(q);
    REAL *B = malloc(2 * n * n * sizeof(REAL));
    if (!B) return 1;
    for (Index e = 0; e < n * n; e++) {
        B[e] = (REAL)B0[e];
        if (A1) B[n * n + e] = (REAL)B1[e];
    }
    NAME(Tall) job = {
        .A = {A0, A1}, .B = {B, B + n * n}, .out = out, .p = p, .q = q,
        .pieces = block_count(p, SEGMENT)};
    run(threads, NAME(work), &job);
    free(B);
    return job.failed;
}

#undef WIDE
