/* The multilinear map of neighbouring modes, and its derivatives, tile by tile.

   A tensor lies in memory as (L, d_1, …, d_m, R), where modes 1 to m are projected together by
   matrices A_k of p_k × q_k. A tile goes through all of its products while it is in the cache; it
   is read once, and written once. What plan.py calls shrink, grow and pair, there for whole
   tensors, is here for a tile.
*/
#include <stdlib.h>

#include "lanes.h"
#include "pack.h"
#include "pieces.h"
#include "product.h"

#define MODES 4
#define ALIGNMENT 64

typedef struct {
    Index m, L, R;
    Index p[MODES], q[MODES];
    Index order[MODES]; /* in which X shrinks; Z grows in the opposite one */
} Shape;

typedef struct {
    Shape shape;
    const float *X, *Z;       /* large and small */
    float *grown, *shrunk;    /* results, or null */
    const float *A[MODES];    /* p × q */
    const float *A_t[MODES];  /* q × p */
    float *derivatives;       /* of every piece, or null */
    Index tiles, pieces, next;
    int failed;
} Job;

static Index size_of(const Index *sizes, Index from, Index to)
{
    Index n = 1;
    for (Index k = from; k < to; k++) n *= sizes[k];
    return n;
}

static Index entries(const Shape *s)
{
    Index n = 0;
    for (Index k = 0; k < s->m; k++) n += s->p[k] * s->q[k];
    return n;
}

/* sizes[k] copies become `target` copies, by A of sizes[k] × target. */
static void step(const float *A, const float *from, float *to, Index *sizes, Index m, Index k, Index target)
{
    Index outer = size_of(sizes, 0, k), n = size_of(sizes, k + 1, m) * LANES, K = sizes[k];
    for (Index o = 0; o < outer; o++)
        product(A, from + o * K * n, to + o * target * n, K, target, n);
    sizes[k] = target;
}

typedef struct {
    float *memory;
    float *x[MODES + 1]; /* X after 0, 1, …, m steps */
    float *z[MODES + 1]; /* Z brought to the sizes of x[i] */
    Vector *D[MODES];
} Tile;

static int allocate(Tile *t, const Shape *s, int derivatives)
{
    Index sizes[MODES], floats = 0, of[MODES + 1];
    for (Index k = 0; k < s->m; k++) sizes[k] = s->p[k];
    for (Index i = 0; i <= s->m; i++) {
        of[i] = size_of(sizes, 0, s->m) * LANES;
        floats += 2 * of[i];
        if (i < s->m) sizes[s->order[i]] = s->q[s->order[i]];
    }
    Index vectors = derivatives ? entries(s) : 0;
    Index bytes = floats * sizeof(float) + vectors * sizeof(Vector);
    t->memory = aligned_alloc(ALIGNMENT, (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT);
    if (!t->memory) return 0;
    float *place = t->memory + vectors * WIDTH;
    for (Index i = 0; i <= s->m; i++) {
        t->x[i] = place;
        t->z[i] = place + of[i];
        place += 2 * of[i];
    }
    Vector *D = (Vector *)t->memory;
    for (Index k = 0; k < s->m; k++) {
        t->D[k] = D;
        D += s->p[k] * s->q[k];
    }
    return 1;
}

static void shrink_tile(const Job *job, Tile *t, Index steps)
{
    const Shape *s = &job->shape;
    Index sizes[MODES];
    for (Index k = 0; k < s->m; k++) sizes[k] = s->p[k];
    for (Index i = 0; i < steps; i++) {
        Index k = s->order[i];
        step(job->A[k], t->x[i], t->x[i + 1], sizes, s->m, k, s->q[k]);
    }
}

/* Grows z[m] to z[0] and, if wanted, pairs each stage with X's; z[0] only if that is wanted. */
static void grow_tile(const Job *job, Tile *t, int pairing)
{
    const Shape *s = &job->shape;
    Index sizes[MODES];
    for (Index k = 0; k < s->m; k++) sizes[k] = s->q[k];
    for (Index i = s->m; i-- > 0;) {
        Index k = s->order[i];
        if (pairing)
            contract(t->x[i], t->z[i + 1], size_of(sizes, 0, k), s->p[k], s->q[k],
                     size_of(sizes, k + 1, s->m) * LANES, t->D[k]);
        if (i > 0 || job->grown)
            step(job->A_t[k], t->z[i + 1], t->z[i], sizes, s->m, k, s->p[k]);
    }
}

static void work_on(const Job *job, Tile *t, Index piece)
{
    const Shape *s = &job->shape;
    Index P = size_of(s->p, 0, s->m), Q = size_of(s->q, 0, s->m);
    int pairing = job->derivatives != NULL;
    Index end = start_of(piece + 1, job->tiles, job->pieces);
    if (pairing) memset(t->D[0], 0, entries(s) * sizeof(Vector));
    for (Index tile = start_of(piece, job->tiles, job->pieces); tile < end; tile++) {
        if (job->X) {
            pack(job->X, s->L, P, s->R, tile, t->x[0]);
            shrink_tile(job, t, job->shrunk ? s->m : s->m - 1);
        }
        if (job->Z) {
            pack(job->Z, s->L, Q, s->R, tile, t->z[s->m]);
            grow_tile(job, t, pairing);
        }
        if (job->grown) unpack(job->grown, s->L, P, s->R, tile, t->z[0]);
        if (job->shrunk) unpack(job->shrunk, s->L, Q, s->R, tile, t->x[s->m]);
    }
    if (!pairing) return;
    float *sums = job->derivatives + piece * entries(s);
    for (Index e = 0; e < entries(s); e++) {
        float sum = 0;
        for (int v = 0; v < WIDTH; v++) sum += t->D[0][e][v];
        sums[e] = sum;
    }
}

static void work(void *data)
{
    Job *job = data;
    Tile t;
    if (!allocate(&t, &job->shape, job->derivatives != NULL)) {
        job->failed = 1;
        return;
    }
    for (Index piece; (piece = take(&job->next)) < job->pieces;) work_on(job, &t, piece);
    free(t.memory);
}

/* Any of: shrunk from X; grown from Z; derivatives of <shrink(X), Z> by the A's, one after the
   other, from both. Pointers to what is not there or not wanted are null. Returns 0, or 1 where
   there is no memory. */
int tp_maps(
    Parallel parallel, Index threads, const Index *shape, const float *const *A, const float *X,
    const float *Z, float *grown, float *shrunk, float *derivatives)
{
    Job job = {.X = X, .Z = Z, .grown = grown, .shrunk = shrunk};
    Shape *s = &job.shape;
    s->m = shape[0], s->L = shape[1], s->R = shape[2];
    for (Index k = 0; k < s->m; k++) {
        s->p[k] = shape[3 + k], s->q[k] = shape[3 + s->m + k];
        s->order[k] = shape[3 + 2 * s->m + k];
    }
    job.tiles = (s->L * s->R + LANES - 1) / LANES;
    job.pieces = piece_count(job.tiles);
    Index n = entries(s);
    float *transposes = malloc(n * sizeof(float));
    float *sums = derivatives ? malloc(n * job.pieces * sizeof(float)) : NULL;
    if (!transposes || (derivatives && !sums)) job.failed = 1;
    if (!job.failed) {
        float *A_t = transposes;
        for (Index k = 0; k < s->m; A_t += s->p[k] * s->q[k], k++) {
            for (Index i = 0; i < s->p[k]; i++)
                for (Index l = 0; l < s->q[k]; l++) A_t[l * s->p[k] + i] = A[k][i * s->q[k] + l];
            job.A[k] = A[k], job.A_t[k] = A_t;
        }
        job.derivatives = sums;
        run(parallel, threads, work, &job);
    }
    if (!job.failed && derivatives)
        for (Index e = 0; e < n; e++) {
            double sum = 0;
            for (Index piece = 0; piece < job.pieces; piece++) sum += sums[piece * n + e];
            derivatives[e] = (float)sum;
        }
    free(sums);
    free(transposes);
    return job.failed;
}
