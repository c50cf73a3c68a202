/* portable_matmul.cu -- matrix products with the bits of gemm_portable.c. An element is
 * ((c + a0*b0) + a1*b1) + ... in order of k, with c = 0 unless the call accumulates, and without
 * fused multiply-adds.
 *
 * A block computes a tile of 64 x 64 elements of out. It loops over k in steps of 16. Its 256
 * threads load 64 x 16 elements of op(a) and 16 x 64 of op(b) to shared memory as fp32; then each
 * thread adds 16 products to each of its 4 x 4 elements, which are 16 rows and 16 columns apart. So
 * each loaded number is used 64 times, and the lanes of a warp read neighbours in shared memory. */
#include "common/cuda/kernels.h"
#include "common/cuda/launch.h"
#include "common/ops/row_elem.h"

enum { TILE = 64, DEPTH = 16, SIDE = 16, PER_SIDE = TILE / SIDE };

/* The first element of a thread, and its sums. */
typedef struct tile_sums {
    size_t row, col;
    float sum[PER_SIDE][PER_SIDE];
} tile_sums;

/* op(a) or op(b): a matrix [depth,n], or stored transposed [n,depth], with rows `stride` apart. */
typedef struct operand {
    const void *x;
    size_t depth, n, stride;
    bool transposed;
} operand;

/* x[p][i] = element (first_p + p, first_i + i). Neighbouring threads load neighbours. Elements
 * outside the matrix are not written to x, and enter no sum that is stored. */
static __device__ inline void load_tile(float x[DEPTH][TILE], const operand *from, size_t first_p,
                                        size_t first_i, dtype type)
{
    const bool transposed = from->transposed;
    for (int e = (int)threadIdx.x; e < DEPTH * TILE; e += BLOCK_THREADS) {
        const int p = transposed ? e % DEPTH : e / TILE, i = transposed ? e / DEPTH : e % TILE;
        const size_t row = first_p + (size_t)p, col = first_i + (size_t)i;
        const size_t at = transposed ? col * from->stride + row : row * from->stride + col;
        if (row < from->depth && col < from->n)
            x[p][i] = row_load(from->x, at, type);
    }
}

/* Add the products of one step, depth <= DEPTH per element, in order. */
static __device__ inline void add_products(tile_sums *t, float a[DEPTH][TILE], float b[DEPTH][TILE],
                                           size_t depth)
{
    const int x = (int)threadIdx.x % SIDE, y = (int)threadIdx.x / SIDE;
    for (size_t p = 0; p < depth; p++)
        for (int i = 0; i < PER_SIDE; i++)
            for (int j = 0; j < PER_SIDE; j++)
                t->sum[i][j] += a[p][y + i * SIDE] * b[p][x + j * SIDE];
}

static __device__ inline void begin_sums(const matmul_args *m, block_place tile, tile_sums *t)
{
    const size_t stride = row_stride(m->out_stride, m->n);
    t->row = tile.row * TILE + threadIdx.x / SIDE;
    t->col = tile.col * TILE + threadIdx.x % SIDE;
    for (size_t i = 0; i < PER_SIDE; i++)
        for (size_t j = 0; j < PER_SIDE; j++) {
            const size_t row = t->row + i * SIDE, col = t->col + j * SIDE;
            const bool adds = m->accumulate && row < m->m && col < m->n;
            t->sum[i][j] = adds ? ((const float *)m->out)[row * stride + col] : 0.0f;
        }
}

static __device__ inline void matmul_tile(const matmul_args *m, dtype type)
{
    __shared__ float a[DEPTH][TILE], b[DEPTH][TILE];
    const size_t a_stride = row_stride(m->a_stride, m->trans_a ? m->m : m->k);
    const operand op_a = {m->a, m->k, m->m, a_stride, !m->trans_a};
    const operand op_b = {m->b, m->k, m->n, m->trans_b ? m->k : m->n, m->trans_b};
    const block_place tile = block_of(groups_of(m->n, TILE));
    tile_sums t;
    begin_sums(m, tile, &t);
    for (size_t p = 0; p < m->k; p += DEPTH) {
        load_tile(a, &op_a, p, tile.row * TILE, type);
        load_tile(b, &op_b, p, tile.col * TILE, type);
        __syncthreads();
        add_products(&t, a, b, m->k - p < DEPTH ? m->k - p : (size_t)DEPTH);
        __syncthreads(); /* all threads have read a and b before they are overwritten */
    }
    for (size_t i = 0; i < PER_SIDE; i++)
        for (size_t j = 0; j < PER_SIDE; j++) {
            const size_t row = t.row + i * SIDE, col = t.col + j * SIDE;
            float x = t.sum[i][j];
            if (row < m->m && col < m->n)
                matmul_finish_row(m, row, col, 1, &x, type);
        }
}

/* Two blocks fit on a processor: the compiler may use half of its registers. */
__global__ void __launch_bounds__(BLOCK_THREADS, 2) matmul_kernel(matmul_args m)
{
    BY_TYPE(matmul_tile, m.type, &m);
}

OPERATION(portable, matmul, matmul_kernel, grid_of(groups_of(a->m, TILE), groups_of(a->n, TILE)),
          BLOCK_THREADS, *a)
