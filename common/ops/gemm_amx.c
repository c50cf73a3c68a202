/* gemm_amx.c -- products in bf16 by the tiles of Intel's AMX. See cpu_kernels.h.
 *
 * A tile is 16 rows of 64 bytes. One instruction (TDPBF16PS) adds the products of 16 x 32 elements
 * of op(a) and 32 x 16 of op(b) to 16 x 16 sums in fp32. Four sums, 32 x 32 elements of c, take all
 * of k in order, two operand tiles each for two of them, so a load serves two products.
 *
 * AMX wants op(a) by rows, as a usually is, and pairs of rows of op(b) interleaved. So b is packed,
 * in panels of 32 columns for DEPTH of k; a is packed too if it is stored by columns, a few blocks
 * at a time, or if its rows are not made of whole lines of 64 bytes. Interleaving b that is stored
 * by columns (forward's weights) would cost the most, so then c is computed as its transpose,
 * bT aT: rows of the weights are read where they are, and the few rows of a interleaved.
 *
 * What is missing at the edges is packed as zeros. So an element of c is the same sequence of
 * operations whatever m, n and the element's place are, and its bits do not depend on them. AMX
 * takes denormal operands for 0 and makes denormal sums 0. */
#include "common/ops/cpu_kernels.h"

#if defined __x86_64__ && defined __linux__
#include <cpuid.h>
#include <immintrin.h>
#include <sys/syscall.h>
#include <unistd.h>
#include "common/device/cpu_tiles.h"

#define AMX_FN static __attribute__((target("amx-tile,amx-bf16,avx512f,avx512bw,avx512vl")))

enum { BLOCK = 32, PACKED = 4 * BLOCK, DEPTH = 1024, MAX_N = GEMM_AMX_MAX_N };
enum { ASK_PERMISSION = 0x1023, TILE_DATA = 18 };          /* of arch_prctl */
enum { HAS_TILES = 1 << 24, HAS_BF16_PRODUCTS = 1 << 22 }; /* of CPUID 7, in edx */

bool gemm_amx_open(void)
{
    unsigned eax, ebx, ecx, edx, wanted = HAS_TILES | HAS_BF16_PRODUCTS;
    return __get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) && (edx & wanted) == wanted &&
           __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
           syscall(SYS_arch_prctl, ASK_PERMISSION, TILE_DATA) == 0;
}

/* gcc's intrinsics do not say which memory a tile or the configuration is loaded from. */
static inline void loads_see_stores(void)
{
    __asm__ volatile("" ::: "memory");
}

/* All eight tiles have 16 rows of 64 bytes. */
AMX_FN void tiles_open(void)
{
    _Alignas(64) uint8_t config[64] = {1};
    for (int tile = 0; tile < 8; tile++) {
        ((uint16_t *)(void *)(config + 16))[tile] = 64;
        config[48 + tile] = 16;
    }
    loads_see_stores();
    _tile_loadconfig(config);
}

#define ISA_FN  AMX_FN
#define NAME(x) x
#include "common/ops/vectors_avx512.h"
#include "common/ops/transpose.h"

/* Elements 0 to n - 1 of row p of x, of which there are k; zeros elsewhere. */
AMX_FN __m512i row_part(const uint16_t *x, size_t ld, size_t p, size_t k, size_t n)
{
    const __mmask32 there = p >= k ? 0 : n >= 32 ? 0xffffffffu : (1u << n) - 1;
    return _mm512_maskz_loadu_epi16(there, there ? x + p * ld : x);
}

/* out [32][depth]: rows 0 to m - 1 of x [m][ld], k elements of each. */
AMX_FN void pack_a_rows(const uint16_t *x, size_t ld, size_t k, size_t m, size_t depth,
                        uint16_t *out)
{
    for (size_t i = 0; i < BLOCK; i++)
        for (size_t p = 0; p < depth; p += 32)
            _mm512_store_si512(out + i * depth + p,
                               row_part(p < k ? x + p : x, ld, i, p < k ? m : 0, k - p));
}

/* out [n][depth]: n columns of x [k][ld], as rows. */
AMX_FN void pack_a(const uint16_t *x, size_t ld, size_t k, size_t n, size_t depth, uint16_t *out)
{
    /* element 2i + j of a pair of rows: element i of row j */
    const __m512i interleave =
        _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8, 23, 7, 22, 6,
                         21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
    for (size_t p = 0; p < depth; p += 32)
        for (size_t j = 0; j < size_round_up(n, BLOCK); j += 16) {
            const size_t at = j / BLOCK * BLOCK; /* of a line, of which j begins half */
            _Alignas(64) uint16_t pairs[16][32];
            for (size_t i = 0; i < 16; i++) {
                const __m512i even = row_part(x + at, ld, p + 2 * i, k, n - at),
                              odd = row_part(x + at, ld, p + 2 * i + 1, k, n - at);
                const __m512i both =
                    j == at ? _mm512_inserti64x4(even, _mm512_castsi512_si256(odd), 1)
                            : _mm512_inserti64x4(odd, _mm512_extracti64x4_epi64(even, 1), 0);
                _mm512_store_si512(pairs[i], _mm512_permutexvar_epi16(interleave, both));
            }
            transpose((const float *)pairs, 16, (float *)(out + j * depth + p), depth / 2);
        }
}

/* out: n columns of x [k][ld] in panels [depth/2][32][2], two rows interleaved. In order of rows,
 * since weights come from memory, and that is several times as fast as one panel after another. */
AMX_FN void pack_b(const uint16_t *x, size_t ld, size_t k, size_t n, size_t depth, uint16_t *out)
{
    const __m512i low = _mm512_set_epi16(47, 15, 46, 14, 45, 13, 44, 12, 43, 11, 42, 10, 41, 9, 40,
                                         8, 39, 7, 38, 6, 37, 5, 36, 4, 35, 3, 34, 2, 33, 1, 32, 0);
    const __m512i high = _mm512_add_epi16(low, _mm512_set1_epi16(16));
    for (size_t p = 0; p < depth; p += 2)
        for (size_t j = 0; j < n; j += BLOCK) {
            uint16_t *const pair = out + j * depth + p * BLOCK;
            const __m512i even = row_part(x + j, ld, p, k, n - j),
                          odd = row_part(x + j, ld, p + 1, k, n - j);
            _mm512_store_si512(pair, _mm512_permutex2var_epi16(even, low, odd));
            _mm512_store_si512(pair + BLOCK, _mm512_permutex2var_epi16(even, high, odd));
        }
}

/* out: a panel whose columns are rows 0 to n - 1 of x [n][ld], k elements of each. */
AMX_FN void pack_b_rows(const uint16_t *x, size_t ld, size_t k, size_t n, size_t depth,
                        uint16_t *out)
{
    for (size_t half = 0; half < BLOCK; half += 16)
        for (size_t p = 0; p < depth; p += 32) {
            _Alignas(64) uint16_t rows[16][32];
            for (size_t i = 0; i < 16; i++)
                _mm512_store_si512(rows[i],
                                   row_part(p < k ? x + p : x, ld, half + i, p < k ? n : 0, k - p));
            transpose((const float *)rows, 16, (float *)(out + p * BLOCK + 2 * half), BLOCK);
        }
}

/* n rows of op(a). ld: elements from one stored row to the next. by_columns: a stored row has the
 * elements of all n rows for one k. */
typedef struct operand {
    const uint16_t *x;
    size_t n, ld;
    bool by_columns;
} operand;

/* The operands of a block of c: k elements from p on, with zeros up to depth. Rows of a are ld
 * elements apart; b is packed. */
typedef struct block_args {
    const uint16_t *a, *b;
    size_t ld, p, k, depth;
    bool adds, is_last;
} block_args;

/* Rows i on of a: where they are, if they are whole and made of lines, else packed. */
AMX_FN void take_rows(const operand *a, size_t i, uint16_t *packed, block_args *x)
{
    const uint16_t *rows = a->x + i * a->ld + x->p;
    x->a = packed;
    x->ld = x->depth;
    if (a->by_columns) {
        if (i % PACKED == 0)
            pack_a(a->x + x->p * a->ld + i, a->ld, x->k, min_size(a->n - i, PACKED), x->depth,
                   packed);
        x->a = packed + i % PACKED * x->depth;
    } else if (a->n - i >= BLOCK && x->k == x->depth && (uintptr_t)rows % 64 == 0 &&
               a->ld % 32 == 0) {
        x->a = rows;
        x->ld = a->ld;
    } else
        pack_a_rows(rows, a->ld, x->k, a->n - i, x->depth, packed);
}

/* c [32][32] = a b, or added to c. */
AMX_FN void multiply(const block_args *x, float *c)
{
    const uint16_t *const a = x->a, *const b = x->b;
    const size_t ld = x->ld;
    enum { BYTES = BLOCK * sizeof *c };
    loads_see_stores();
    if (x->adds) {
        _tile_loadd(0, c, BYTES);
        _tile_loadd(1, c + 16, BYTES);
        _tile_loadd(2, c + 16 * BLOCK, BYTES);
        _tile_loadd(3, c + 16 * BLOCK + 16, BYTES);
    } else {
        _tile_zero(0);
        _tile_zero(1);
        _tile_zero(2);
        _tile_zero(3);
    }
    for (size_t p = 0; p < x->depth; p += 32) {
        _tile_loadd(4, a + p, ld * sizeof *a);
        _tile_loadd(6, b + p * BLOCK, 2 * BLOCK * sizeof *b);
        _tile_dpbf16ps(0, 4, 6);
        _tile_loadd(7, b + p * BLOCK + 32, 2 * BLOCK * sizeof *b);
        _tile_dpbf16ps(1, 4, 7);
        _tile_loadd(5, a + 16 * ld + p, ld * sizeof *a);
        _tile_dpbf16ps(2, 5, 6);
        _tile_dpbf16ps(3, 5, 7);
    }
    _tile_stored(0, c, BYTES);
    _tile_stored(1, c + 16, BYTES);
    _tile_stored(2, c + 16 * BLOCK, BYTES);
    _tile_stored(3, c + 16 * BLOCK + 16, BYTES);
}

/* out = the transpose of a block. */
AMX_FN void flip(const float block[BLOCK * BLOCK], float out[BLOCK * BLOCK])
{
    for (size_t i = 0; i < BLOCK; i += 16)
        for (size_t j = 0; j < BLOCK; j += 16)
            transpose(block + i * BLOCK + j, BLOCK, out + j * BLOCK + i, BLOCK);
}

/* The first n of 16 elements. */
AMX_FN __mmask16 first(size_t n)
{
    return (__mmask16)((1u << min_size(n, 16)) - 1);
}

/* Copy m x n elements between the block and c. past: write past the caches, if c is aligned. */
AMX_FN void block_load(const float *c, size_t ldc, size_t m, size_t n, float block[BLOCK * BLOCK])
{
    for (size_t i = 0; i < m; i++)
        for (size_t j = 0; j < n; j += 16)
            _mm512_store_ps(block + i * BLOCK + j,
                            _mm512_maskz_loadu_ps(first(n - j), c + i * ldc + j));
}

AMX_FN void block_store(const float block[BLOCK * BLOCK], float *c, size_t ldc, size_t m, size_t n,
                        bool past)
{
    past = past && n % 16 == 0 && (uintptr_t)c % 64 == 0 && ldc % 16 == 0;
    for (size_t i = 0; i < m; i++)
        for (size_t j = 0; j < n; j += 16) {
            const __m512 x = _mm512_load_ps(block + i * BLOCK + j);
            if (past)
                _mm512_stream_ps(c + i * ldc + j, x);
            else
                _mm512_mask_storeu_ps(c + i * ldc + j, first(n - j), x);
        }
}

/* block += the left siblings, from element `at` of each. */
AMX_FN void add_left(const gemm_args *g, size_t at, size_t m, size_t n, float block[BLOCK * BLOCK])
{
    for (const leaf_left *left = g->left; left != NULL; left = left->next)
        for (size_t i = 0; i < m; i++)
            for (size_t j = 0; j < n; j++)
                block[i * BLOCK + j] += left->x[at + i * g->n + j];
}

/* A block of c: rows i and columns j on. */
AMX_FN void block_of_c(const gemm_args *g, size_t i, size_t j, const block_args *x)
{
    _Alignas(64) float sums[BLOCK * BLOCK], flipped[BLOCK * BLOCK];
    float *const block = g->trans_b ? flipped : sums;
    const size_t m = min_size(g->m - i, BLOCK), n = min_size(g->n - j, BLOCK);
    float *c = g->c + i * g->ldc + j;
    if (x->adds)
        block_load(c, g->ldc, m, n, block);
    if (x->adds && g->trans_b)
        flip(flipped, sums);
    multiply(x, sums);
    if (g->trans_b)
        flip(sums, flipped);
    if (x->is_last)
        add_left(g, i * g->n + j, m, n, block);
    block_store(block, c, g->ldc, m, n, x->is_last && g->streams);
}

AMX_FN void gemm(const gemm_args *g)
{
    _Alignas(64) uint16_t packed[PACKED * DEPTH], b[MAX_N * DEPTH];
    const bool flips = g->trans_b;
    const operand a =
        flips ? (operand){g->b, g->n, g->ldb, false} : (operand){g->a, g->m, g->lda, g->trans_a};
    const size_t cols = flips ? g->m : g->n, ld_b = flips ? g->lda : g->ldb;
    const uint16_t *const y = flips ? g->a : g->b;
    FSDP_ASSERT(cols <= MAX_N && g->k > 0 && !(g->trans_a && g->trans_b));
    tiles_open();
    for (size_t p = 0; p < g->k; p += DEPTH) {
        const size_t k = min_size(g->k - p, DEPTH), depth = size_round_up(k, 32);
        block_args x = {.p = p,
                        .k = k,
                        .depth = depth,
                        .adds = g->accumulate || p > 0,
                        .is_last = p + k == g->k};
        if (!flips)
            pack_b(y + p * ld_b, ld_b, k, cols, depth, b);
        for (size_t j = 0; j < cols && flips; j += BLOCK)
            pack_b_rows(y + j * ld_b + p, ld_b, k, cols - j, depth, b + j * depth);
        for (size_t i = 0; i < a.n; i += BLOCK) {
            take_rows(&a, i, packed, &x);
            for (size_t j = 0; j < cols; j += BLOCK) {
                x.b = b + j * depth;
                block_of_c(g, flips ? j : i, flips ? i : j, &x);
            }
        }
    }
    _mm_sfence();
    _tile_release();
}

void gemm_amx(const gemm_args *g)
{
    gemm(g);
}
#else
bool gemm_amx_open(void)
{
    return false;
}

void gemm_amx(const gemm_args *g)
{
    (void)g;
}
#endif
