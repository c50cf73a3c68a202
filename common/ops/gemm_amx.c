/* gemm_amx.c -- products in bf16 by the tiles of Intel's AMX. See cpu_kernels.h.
 *
 * A tile is 16 rows of 64 bytes. One instruction (TDPBF16PS) adds the products of 16 x 32 elements
 * of op(a) and 32 x 16 of op(b) to 16 x 16 sums in fp32. Four sums, 32 x 32 elements of c, take all
 * of k in order, two operand tiles each for two of them, so a load serves two products.
 *
 * AMX wants op(a) by rows and pairs of rows of op(b) interleaved, so both are packed: op(b) once
 * for DEPTH of k, op(a) by 32 rows at a time. Packing costs (m + n) k loads and stores for m n k
 * products. Interleaving b that is stored by columns (forward's weights) would cost the most, so
 * then c is computed as its transpose, bT aT: of the few rows of a the columns are interleaved.
 *
 * What is missing at the edges is packed as zeros. So an element of c is the same sequence of
 * operations whatever m, n and the element's place are, and its bits do not depend on them. */
#include "common/ops/cpu_kernels.h"

#if defined __x86_64__ && defined __linux__
#include <cpuid.h>
#include <immintrin.h>
#include <sys/syscall.h>
#include <unistd.h>
#include "common/device/cpu_tiles.h"

#define AMX_FN static __attribute__((target("amx-tile,amx-bf16,avx512f,avx512bw,avx512vl")))

enum { BLOCK = 32, DEPTH = 1024, MAX_N = GEMM_AMX_MAX_N };
enum { ASK_PERMISSION = 0x1023, TILE_DATA = 18 };          /* of arch_prctl */
enum { HAS_TILES = 1 << 24, HAS_BF16_PRODUCTS = 1 << 22 }; /* of CPUID 7, in edx */

bool gemm_amx_open(void)
{
    unsigned eax, ebx, ecx, edx, wanted = HAS_TILES | HAS_BF16_PRODUCTS;
    return __get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) && (edx & wanted) == wanted &&
           syscall(SYS_arch_prctl, ASK_PERMISSION, TILE_DATA) == 0;
}

/* All eight tiles have 16 rows of 64 bytes. */
AMX_FN void tiles_open(void)
{
    _Alignas(64) uint8_t config[64] = {1};
    for (int tile = 0; tile < 8; tile++) {
        ((uint16_t *)(void *)(config + 16))[tile] = 64;
        config[48 + tile] = 16;
    }
    _tile_loadconfig(config);
}

/* Transpose 16 x 16 elements of 32 bits. */
AMX_FN void transpose(__m512i r[16])
{
    __m512i t[16];
    for (int i = 0; i < 8; i++) {
        t[2 * i] = _mm512_unpacklo_epi32(r[2 * i], r[2 * i + 1]);
        t[2 * i + 1] = _mm512_unpackhi_epi32(r[2 * i], r[2 * i + 1]);
    }
    for (int i = 0; i < 4; i++)
        for (int half = 0; half < 2; half++) {
            r[4 * i + 2 * half] = _mm512_unpacklo_epi64(t[4 * i + half], t[4 * i + half + 2]);
            r[4 * i + 2 * half + 1] = _mm512_unpackhi_epi64(t[4 * i + half], t[4 * i + half + 2]);
        }
    for (int i = 0; i < 4; i++)
        for (int pair = 0; pair < 16; pair += 8) {
            t[pair + i] = _mm512_shuffle_i32x4(r[pair + i], r[pair + i + 4], 0x88);
            t[pair + i + 4] = _mm512_shuffle_i32x4(r[pair + i], r[pair + i + 4], 0xdd);
        }
    for (int i = 0; i < 8; i++) {
        r[i] = _mm512_shuffle_i32x4(t[i], t[i + 8], 0x88);
        r[i + 8] = _mm512_shuffle_i32x4(t[i], t[i + 8], 0xdd);
    }
}

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

/* out [32][depth]: columns 0 to n - 1 of x [k][ld], as rows. */
AMX_FN void pack_a(const uint16_t *x, size_t ld, size_t k, size_t n, size_t depth, uint16_t *out)
{
    /* element 2i + j of a pair of rows: element i of row j */
    const __m512i interleave =
        _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8, 23, 7, 22, 6,
                         21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
    for (size_t p = 0; p < depth; p += 32)
        for (int half = 0; half < 2; half++) {
            __m512i r[16];
            for (size_t i = 0; i < 16; i++) {
                const __m512i even = row_part(x, ld, p + 2 * i, k, n),
                              odd = row_part(x, ld, p + 2 * i + 1, k, n);
                const __m512i both =
                    half == 0 ? _mm512_inserti64x4(even, _mm512_castsi512_si256(odd), 1)
                              : _mm512_inserti64x4(odd, _mm512_extracti64x4_epi64(even, 1), 0);
                r[i] = _mm512_permutexvar_epi16(interleave, both);
            }
            transpose(r);
            for (size_t i = 0; i < 16; i++)
                _mm512_store_si512(out + (16 * (size_t)half + i) * depth + p, r[i]);
        }
}

/* out [depth/2][32][2]: columns 0 to n - 1 of x [k][ld], two rows interleaved. */
AMX_FN void pack_b(const uint16_t *x, size_t ld, size_t k, size_t n, size_t depth, uint16_t *out)
{
    const __m512i low = _mm512_set_epi16(47, 15, 46, 14, 45, 13, 44, 12, 43, 11, 42, 10, 41, 9, 40,
                                         8, 39, 7, 38, 6, 37, 5, 36, 4, 35, 3, 34, 2, 33, 1, 32, 0);
    const __m512i high = _mm512_add_epi16(low, _mm512_set1_epi16(16));
    for (size_t p = 0; p < depth; p += 2) {
        const __m512i even = row_part(x, ld, p, k, n), odd = row_part(x, ld, p + 1, k, n);
        _mm512_store_si512(out + p * BLOCK, _mm512_permutex2var_epi16(even, low, odd));
        _mm512_store_si512(out + p * BLOCK + BLOCK, _mm512_permutex2var_epi16(even, high, odd));
    }
}

/* The same of rows 0 to n - 1 of x [n][ld], k elements of each, as columns. */
AMX_FN void pack_b_rows(const uint16_t *x, size_t ld, size_t k, size_t n, size_t depth,
                        uint16_t *out)
{
    for (size_t half = 0; half < BLOCK; half += 16)
        for (size_t p = 0; p < depth; p += 32) {
            __m512i r[16];
            for (size_t i = 0; i < 16; i++)
                r[i] = row_part(p < k ? x + p : x, ld, half + i, p < k ? n : 0, k - p);
            transpose(r);
            for (size_t i = 0; i < 16; i++)
                _mm512_store_si512(out + (p + 2 * i) * BLOCK + 2 * half, r[i]);
        }
}

/* c [32][32] = a [32][depth] b, or added to c. */
AMX_FN void multiply(const uint16_t *a, const uint16_t *b, size_t depth, bool adds, float *c)
{
    enum { BYTES = BLOCK * sizeof *c };
    if (adds) {
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
    for (size_t p = 0; p < depth; p += 32) {
        _tile_loadd(4, a + p, depth * sizeof *a);
        _tile_loadd(6, b + p * BLOCK, 2 * BLOCK * sizeof *b);
        _tile_dpbf16ps(0, 4, 6);
        _tile_loadd(7, b + p * BLOCK + 32, 2 * BLOCK * sizeof *b);
        _tile_dpbf16ps(1, 4, 7);
        _tile_loadd(5, a + 16 * depth + p, depth * sizeof *a);
        _tile_dpbf16ps(2, 5, 6);
        _tile_dpbf16ps(3, 5, 7);
    }
    _tile_stored(0, c, BYTES);
    _tile_stored(1, c + 16, BYTES);
    _tile_stored(2, c + 16 * BLOCK, BYTES);
    _tile_stored(3, c + 16 * BLOCK + 16, BYTES);
}

/* Transpose 32 x 32 elements. */
AMX_FN void flip(float block[BLOCK * BLOCK])
{
    for (size_t i = 0; i < BLOCK; i += 16)
        for (size_t j = 0; j <= i; j += 16) {
            float *const x = block + i * BLOCK + j, *const y = block + j * BLOCK + i;
            __m512i r[16], t[16];
            for (size_t q = 0; q < 16; q++) {
                r[q] = _mm512_load_si512(x + q * BLOCK);
                t[q] = _mm512_load_si512(y + q * BLOCK);
            }
            transpose(r);
            transpose(t);
            for (size_t q = 0; q < 16; q++) {
                _mm512_store_si512(x + q * BLOCK, t[q]);
                _mm512_store_si512(y + q * BLOCK, r[q]);
            }
        }
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

/* The packed operands of a block of c, for a part of k. */
typedef struct packed_block {
    const uint16_t *a, *b;
    size_t depth;
    bool adds, is_last;
} packed_block;

/* A block of c: rows i and columns j on. */
AMX_FN void block_of_c(const gemm_args *g, size_t i, size_t j, const packed_block *x)
{
    _Alignas(64) float block[BLOCK * BLOCK];
    const size_t m = min_size(g->m - i, BLOCK), n = min_size(g->n - j, BLOCK);
    float *c = g->c + i * g->ldc + j;
    if (x->adds)
        block_load(c, g->ldc, m, n, block);
    if (x->adds && g->trans_b)
        flip(block);
    multiply(x->a, x->b, x->depth, x->adds, block);
    if (g->trans_b)
        flip(block);
    if (x->is_last)
        add_left(g, i * g->n + j, m, n, block);
    block_store(block, c, g->ldc, m, n, x->is_last && g->streams);
}

AMX_FN void gemm(const gemm_args *g)
{
    _Alignas(64) uint16_t a[BLOCK * DEPTH], b[MAX_N * DEPTH];
    const bool flips = g->trans_b;
    const size_t rows = flips ? g->n : g->m, cols = flips ? g->m : g->n;
    const size_t ld_a = flips ? g->ldb : g->lda, ld_b = flips ? g->lda : g->ldb;
    const uint16_t *const x = flips ? g->b : g->a, *const y = flips ? g->a : g->b;
    FSDP_ASSERT(cols <= MAX_N && g->k > 0 && !(g->trans_a && g->trans_b));
    tiles_open();
    for (size_t p = 0; p < g->k; p += DEPTH) {
        const size_t k = min_size(g->k - p, DEPTH), depth = size_round_up(k, 32);
        packed_block part = {
            .depth = depth, .adds = g->accumulate || p > 0, .is_last = p + k == g->k};
        for (size_t j = 0; j < cols; j += BLOCK)
            if (flips)
                pack_b_rows(y + j * ld_b + p, ld_b, k, cols - j, depth, b + j * depth);
            else
                pack_b(y + p * ld_b + j, ld_b, k, cols - j, depth, b + j * depth);
        for (size_t i = 0; i < rows; i += BLOCK) {
            if (g->trans_a)
                pack_a(x + p * ld_a + i, ld_a, k, rows - i, depth, a);
            else
                pack_a_rows(x + i * ld_a + p, ld_a, k, rows - i, depth, a);
            part.a = a;
            for (size_t j = 0; j < cols; j += BLOCK) {
                part.b = b + j * depth;
                block_of_c(g, flips ? j : i, flips ? i : j, &part);
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
