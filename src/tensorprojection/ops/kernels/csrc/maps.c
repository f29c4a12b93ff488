/* The multilinear map of neighbouring modes, and its derivatives, tile by tile.

   A tile goes through all of its products while it is in the cache, and is written once. A tile
   whose lanes lie side by side in the tensor is read there, without a copy. The maps that plan.py
   describes for whole tensors (shrink, grow, pair) are done tile by tile here.
*/
#include <stdlib.h>

#include "maps.h"
#include "outer.h"
#include "pack.h"
#include "product.h"

#define ALIGNMENT 64

typedef struct {
    Shape shape;
    Tensors tensors;
    float *const *A, *const *A_t;
    float *derivatives; /* those of every piece, or null */
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

/* The product with A, sizes[k] × target, after which sizes[k] is `target`. */
static void step(
    const Shape *s, const float *A, Place from, Place to, Index *sizes, Index k, Index target,
    Prefetch *prefetch)
{
    Index outer = size_of(sizes, 0, k), n = size_of(sizes, k + 1, s->m), K = sizes[k];
    product(A, from.at, from.stride, to.at, to.stride, outer, K, target, n, 0, prefetch);
    sizes[k] = target;
}

typedef struct {
    float *memory;
    float *x[TILE_MODES + 1]; /* X after 0, 1, …, m steps */
    float *z[TILE_MODES + 1]; /* Z brought to the sizes of x[i] */
    Vector *D[TILE_MODES];
} Tile;

static int allocate(Tile *t, const Shape *s, int derivatives)
{
    Index sizes[TILE_MODES], floats = 0, of[TILE_MODES + 1];
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

static void shrink_tile(
    const Job *job, Tile *t, Index steps, Place first, Place last, Prefetch *prefetch)
{
    const Shape *s = &job->shape;
    Index sizes[TILE_MODES];
    for (Index k = 0; k < s->m; k++) sizes[k] = s->p[k];
    for (Index i = 0; i < steps; i++) {
        Index k = s->order[i];
        Place from = i == 0 ? first : (Place){t->x[i], LANES};
        Place to = i + 1 == s->m ? last : (Place){t->x[i + 1], LANES};
        step(s, job->A[k], from, to, sizes, k, s->q[k], prefetch);
    }
}

/* Grows z[m] to z[1] and, where that is wanted, to z[0]; if `pairing`, with the derivatives. */
static void grow_tile(
    const Job *job, Tile *t, int pairing, Place x, Place first, Place last, Prefetch *prefetch)
{
    const Shape *s = &job->shape;
    Index sizes[TILE_MODES];
    for (Index k = 0; k < s->m; k++) sizes[k] = s->q[k];
    for (Index i = s->m; i-- > 0;) {
        Index k = s->order[i];
        Place from = i + 1 == s->m ? first : (Place){t->z[i + 1], LANES};
        Place with = i == 0 ? x : (Place){t->x[i], LANES};
        if (pairing)
            accumulate_outer(with.at, with.stride, from.at, from.stride, size_of(sizes, 0, k),
                             s->p[k], s->q[k], size_of(sizes, k + 1, s->m), t->D[k]);
        Place to = i == 0 ? last : (Place){t->z[i], LANES};
        if (i > 0 || job->tensors.grown)
            step(s, job->A_t[k], from, to, sizes, k, s->p[k], prefetch);
    }
}

static void work_on(const Job *job, Tile *t, Index piece)
{
    const Shape *s = &job->shape;
    Tensors tensors = job->tensors;
    Index L = s->L, R = s->R, P = size_of(s->p, 0, s->m), Q = size_of(s->q, 0, s->m);
    int pairing = job->derivatives != NULL;
    Index end = start_of(piece + 1, job->tiles, job->pieces);
    if (pairing) memset(t->D[0], 0, entries(s) * sizeof(Vector));
    for (Index tile = start_of(piece, job->tiles, job->pieces); tile < end; tile++) {
        Prefetch prefetch = {.streams = 0};
        /* Channels that lie side by side are read where they are, without a copy. */
        Place x = place_of((float *)tensors.X, L, P, R, tile, t->x[0]);
        Place z = place_of((float *)tensors.Z, L, Q, R, tile, t->z[s->m]);
        if (tensors.X && x.at == t->x[0]) pack(tensors.X, L, P, R, tile, x.at);
        if (tensors.Z && z.at == t->z[s->m]) pack(tensors.Z, L, Q, R, tile, z.at);
        if (tensors.X && tile + 1 < end) prefetch_tile(&prefetch, tensors.X, L, P, R, tile + 1);
        if (tensors.Z && tile + 1 < end) prefetch_tile(&prefetch, tensors.Z, L, Q, R, tile + 1);
        if (tensors.grown) prefetch_tile(&prefetch, tensors.grown, L, P, R, tile);
        if (tensors.shrunk) prefetch_tile(&prefetch, tensors.shrunk, L, Q, R, tile);
        if (tensors.X) {
            Place last = place_of(tensors.shrunk, L, Q, R, tile, t->x[s->m]);
            shrink_tile(job, t, tensors.shrunk ? s->m : s->m - 1, x, last, &prefetch);
            if (tensors.shrunk && last.at == t->x[s->m])
                unpack(tensors.shrunk, L, Q, R, tile, last.at);
        }
        if (tensors.Z) {
            Place last = place_of(tensors.grown, L, P, R, tile, t->z[0]);
            grow_tile(job, t, pairing, x, z, last, &prefetch);
            if (tensors.grown && last.at == t->z[0]) unpack(tensors.grown, L, P, R, tile, last.at);
        }
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

int maps(
    const Threads *threads, const Shape *shape, float *const *A, float *const *A_t,
    const Tensors *tensors)
{
    Job job = {.shape = *shape, .tensors = *tensors, .A = A, .A_t = A_t};
    job.tiles = block_count(shape->L * shape->R, LANES);
    job.pieces = piece_count(job.tiles);
    Index n = entries(shape);
    float *const *D = tensors->D;
    if (D && !(job.derivatives = malloc(n * job.pieces * sizeof(float)))) return 1;
    run(threads, work, &job);
    const float *sums = job.derivatives;
    for (Index k = 0; D && k < shape->m; sums += shape->p[k] * shape->q[k], k++)
        for (Index e = 0; e < shape->p[k] * shape->q[k]; e++) {
            double sum = tensors->add ? D[k][e] : 0;
            for (Index piece = 0; piece < job.pieces; piece++) sum += sums[piece * n + e];
            D[k][e] = (float)sum;
        }
    free(job.derivatives);
    return job.failed;
}
