/* roof_lib.c -- the loops that measure the roof (triad, updates in place, multiply-adds in
 * registers, a large product), and bounds from their results.
 *
 * A roof is the best of several tries, because other work on the machine can only make a try
 * slower. */
#include "tests/bench/roof_lib.h"
#include <math.h>
#include <omp.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include "common/device/device_impl.h"
#include "common/ops/ops.h"
#include "tests/bench/bench_lib.h"
#include "common/ops/cpu_kernels.h"
#ifdef __x86_64__
#include <immintrin.h>
#endif

const size_t bench_roof_bytes[ROOF_SIZES] = {256u << 10, 1u << 20,  4u << 20,
                                             16u << 20,  96u << 20, 768u << 20};

/* ---- triad --------------------------------------------------------------------------------- */

enum { TRIES = 12, HUGE_PAGE_BYTES = 2 << 20 };

/* One pass over three arrays [elems]. */
static void triad_pass(float *restrict a, const float *restrict b, const float *restrict c,
                       size_t elems)
{
    for (size_t i = 0; i < elems; i++)
        a[i] = b[i] + 0.5f * c[i];
}

/* Distance between arrays: whole pages and 17 cache lines. So arrays begin at different places of a
 * page, like large device blocks (common/device/cpu_memory.c says why). Otherwise all arrays of a
 * working set of 2^n would begin at the same place of a page. */
static size_t triad_stride(size_t part_elems)
{
    enum { PAGE_ELEMS = 4096 / sizeof(float), SHIFT_ELEMS = 17 * 64 / sizeof(float) };
    return (part_elems + PAGE_ELEMS - 1) / PAGE_ELEMS * PAGE_ELEMS + SHIFT_ELEMS;
}

/* Seconds of `passes` passes. Every thread has its own part: three arrays [part_elems]. */
static double triad_seconds(float *memory, size_t part_elems, int n_threads, size_t passes)
{
    const size_t stride = triad_stride(part_elems);
    double begun = 0;
#pragma omp parallel num_threads(n_threads)
    {
        float *a = memory + 3 * stride * (size_t)omp_get_thread_num();
        triad_pass(a, a + stride, a + 2 * stride, part_elems);
#pragma omp barrier
        if (omp_get_thread_num() == 0)
            begun = clock_now_s();
#pragma omp barrier
        for (size_t p = 0; p < passes; p++) {
            triad_pass(a, a + stride, a + 2 * stride, part_elems);
            __asm__ volatile("" ::: "memory"); /* keeps the compiler from removing a pass */
        }
    }
    return clock_now_s() - begun;
}

static size_t triad_part_elems(size_t bytes, int n_threads)
{
    return bytes / sizeof(float) / 3 / (size_t)n_threads / 16 * 16;
}

static double triad_gbs(float *memory, size_t bytes, int n_threads)
{
    size_t part_elems = triad_part_elems(bytes, n_threads);
    double moved = 12.0 * (double)part_elems * n_threads, best = 0;
    size_t passes = bench_reps(moved / 100e9, 0.02, 1, 100000);
    for (int i = 0; i < TRIES; i++) {
        double gbs =
            moved * (double)passes / triad_seconds(memory, part_elems, n_threads, passes) / 1e9;
        best = gbs > best ? gbs : best;
    }
    return best;
}

static fsdp_status measure_triad(bench_roof *r)
{
    /* The gaps take the most memory with the largest working set, divided among all threads. */
    size_t part_elems = triad_part_elems(bench_roof_bytes[ROOF_SIZES - 1], r->n_threads);
    size_t elems = 3 * (size_t)r->n_threads * triad_stride(part_elems);
    size_t bytes =
        (elems * sizeof(float) + HUGE_PAGE_BYTES - 1) / HUGE_PAGE_BYTES * HUGE_PAGE_BYTES;
    float *memory = aligned_alloc(HUGE_PAGE_BYTES, bytes);
    if (memory == NULL)
        return fsdp_error(FSDP_ENOMEM, "free memory", "roof: cannot allocate %zu bytes", bytes);
    madvise(memory, bytes, MADV_HUGEPAGE); /* as for device memory; only advice */
#pragma omp parallel for num_threads(r->n_threads) schedule(static)
    for (size_t i = 0; i < bytes / sizeof(float); i++)
        memory[i] = 1.0f;
    for (int i = 0; i < ROOF_SIZES; i++) {
        r->triad_all_gbs[i] = triad_gbs(memory, bench_roof_bytes[i], r->n_threads);
        r->triad_one_gbs[i] = triad_gbs(memory, bench_roof_bytes[i], 1);
    }
    free(memory);
    return FSDP_OK;
}

/* ---- in place ------------------------------------------------------------------------------ */

/* A triad writes other lines than it reads, and the CPU fetches those lines too. Here the written
 * lines have just been read. One pass over arrays [elems]. */
static void pass_adamw(float *restrict p, const float *restrict g, float *restrict m,
                       float *restrict v, size_t elems)
{
    for (size_t i = 0; i < elems; i++) {
        m[i] = 0.5f * m[i] + g[i];
        v[i] = 0.5f * v[i] + g[i];
        p[i] = 0.5f * p[i] + g[i];
    }
}

static void pass_sgd(float *restrict p, const float *restrict g, size_t elems)
{
    for (size_t i = 0; i < elems; i++)
        p[i] = 0.5f * p[i] + g[i];
}

static void pass_scale(float *restrict x, size_t elems)
{
    for (size_t i = 0; i < elems; i++)
        x[i] = 0.5f * x[i] + 0.25f;
}

double bench_in_place_s(float *const *x, size_t n, bench_mix mix, int n_threads)
{
    double begun = clock_now_s();
#pragma omp parallel num_threads(n_threads)
    {
        const size_t part = (n + (size_t)n_threads - 1) / (size_t)n_threads;
        const size_t first = part * (size_t)omp_get_thread_num();
        const size_t elems = first >= n ? 0 : first + part > n ? n - first : part;
        if (mix == MIX_ADAMW)
            pass_adamw(x[0] + first, x[1] + first, x[2] + first, x[3] + first, elems);
        else if (mix == MIX_SGD)
            pass_sgd(x[0] + first, x[1] + first, elems);
        else
            pass_scale(x[0] + first, elems);
    }
    return clock_now_s() - begun;
}

/* ---- multiply-adds in registers ------------------------------------------------------------ */

#if defined(__AVX512F__)
enum { VECTOR_BYTES = 64 };
#elif defined(__AVX__)
enum { VECTOR_BYTES = 32 };
#else
enum { VECTOR_BYTES = 16 };
#endif
enum { N_SUMS = 12, LANES = VECTOR_BYTES / 4 };
typedef float lanes __attribute__((vector_size(VECTOR_BYTES)));

/* The project is compiled without contraction; this loop needs the fused instruction. */
#if defined(__clang__)
#define CONTRACT
#else
#define CONTRACT __attribute__((optimize("fp-contract=fast")))
#endif

/* rounds * N_SUMS vectors of independent multiply-adds. N_SUMS exceeds latency * units. */
CONTRACT static float fma_loop(size_t rounds, float x)
{
#ifdef __clang__
#pragma clang fp contract(fast)
#endif
    const lanes zero = {0};
    lanes sum[N_SUMS], by = zero + (1.0f - x), plus = zero + x;
    for (int k = 0; k < N_SUMS; k++)
        sum[k] = zero + (float)k;
    for (size_t i = 0; i < rounds; i++)
#pragma GCC unroll 12
        for (int k = 0; k < N_SUMS; k++)
            sum[k] = sum[k] * by + plus;
    lanes all = zero;
    for (int k = 0; k < N_SUMS; k++)
        all += sum[k];
    float total = 0;
    for (int j = 0; j < LANES; j++)
        total += all[j];
    return total;
}

/* The same with pairs of bf16: one instruction does two multiply-adds per lane. */
#ifdef __AVX512BF16__
static float bf16_loop(size_t rounds, float x)
{
    const __m512bh by = _mm512_cvtne2ps_pbh(_mm512_set1_ps(x), _mm512_set1_ps(x));
    __m512 sum[N_SUMS], all = _mm512_setzero_ps();
    for (int k = 0; k < N_SUMS; k++)
        sum[k] = _mm512_set1_ps((float)k);
    for (size_t i = 0; i < rounds; i++)
#pragma GCC unroll 12
        for (int k = 0; k < N_SUMS; k++)
            sum[k] = _mm512_dpbf16_ps(sum[k], by, by);
    for (int k = 0; k < N_SUMS; k++)
        all = _mm512_add_ps(all, sum[k]);
    return _mm512_reduce_add_ps(all);
}
#endif

/* The same with AMX's tiles. A product is 16 x 16 x 32 multiply-adds, as long as some of the other
 * loops' instructions, so there are fewer rounds. */
#ifdef __x86_64__
enum { FEWER_ROUNDS = 16, TILE_MACS = 16 * 16 * 32 };
__attribute__((target("amx-tile,amx-bf16"))) static float tile_loop(size_t rounds, float x)
{
    _Alignas(64) float sums[16 * 16] = {x};
    _Alignas(64) uint8_t config[64] = {1}; /* eight tiles of 16 rows of 64 bytes */
    for (int tile = 0; tile < 8; tile++) {
        config[16 + 2 * tile] = 64;
        config[48 + tile] = 16;
    }
    _tile_loadconfig(config);
    _tile_loadd(0, sums, 64);
    _tile_loadd(1, sums, 64);
    _tile_loadd(2, sums, 64);
    _tile_loadd(3, sums, 64);
    _tile_loadd(4, sums, 64);
    _tile_loadd(5, sums, 64);
    for (size_t i = 0; i < rounds / FEWER_ROUNDS; i++)
#pragma GCC unroll 3
        for (int k = 0; k < N_SUMS / 4; k++) {
            _tile_dpbf16ps(0, 4, 5);
            _tile_dpbf16ps(1, 4, 5);
            _tile_dpbf16ps(2, 4, 5);
            _tile_dpbf16ps(3, 4, 5);
        }
    _tile_stored(0, sums, 64);
    _tile_release();
    return sums[0];
}
#endif

/* macs: multiply-adds per instruction of the loop. */
static double registers_gflops(float (*loop)(size_t, float), int macs, int n_threads)
{
    enum { ROUNDS = 4000000 };
    double best = 0;
    volatile float x = 1e-7f;
    for (int i = 0; i < TRIES; i++) {
        float sink = 0;
        double begun = clock_now_s();
#pragma omp parallel num_threads(n_threads) reduction(+ : sink)
        sink += loop(ROUNDS, x);
        x = sink > 1e30f ? 2e-7f : 1e-7f;
        double gflops = 2e-9 * ROUNDS * N_SUMS * macs * n_threads / (clock_now_s() - begun);
        best = gflops > best ? gflops : best;
    }
    return best;
}

/* ---- a large matrix product ---------------------------------------------------------------- */

static fsdp_status measure_product(stream *s, dtype type, float *memory, double *gflops)
{
    enum { SIDE = 2048, ELEMS = SIDE * SIDE };
    const matmul_args product = {.out = memory,
                                 .a = memory + ELEMS,
                                 .b = memory + 2 * ELEMS,
                                 .m = SIDE,
                                 .n = SIDE,
                                 .k = SIDE,
                                 .type = type};
    for (int i = 0; i < TRIES; i++) {
        double begun = clock_now_s();
        TRY(ops_cpu_fast()->matmul(s, &product));
        TRY(stream_sync(s));
        *gflops = fmax(*gflops, 2e-9 * SIDE * SIDE * SIDE / (clock_now_s() - begun));
    }
    return FSDP_OK;
}

static fsdp_status measure_products(stream *s, bench_roof *r)
{
    float *memory;
    TRY(device_alloc_f32(s, MEM_OTHER, (size_t)3 * 2048 * 2048, "roof", &memory));
    memset(memory, 0x3c, (size_t)3 * 2048 * 2048 * sizeof *memory); /* 0.0115 in either type */
    fsdp_status status = measure_product(s, DTYPE_F32, memory, &r->sgemm_gflops);
    if (status == FSDP_OK)
        status = measure_product(s, DTYPE_BF16, memory, &r->bf16_gflops);
    device_free(s, memory);
    return status;
}

fsdp_status bench_roof_measure(stream *s, bench_roof *out)
{
    const int n_threads = s->n_threads;
    *out = (bench_roof){.n_threads = n_threads};
    TRY(measure_triad(out));
    out->fma_one_gflops = registers_gflops(fma_loop, LANES, 1);
    out->fma_all_gflops = registers_gflops(fma_loop, LANES, n_threads);
#ifdef __AVX512BF16__
    out->bf16_all_gflops = registers_gflops(bf16_loop, 2 * LANES, n_threads);
#endif
#ifdef __x86_64__
    char library[96];
    ops_cpu_library(library, sizeof library);
    if (strstr(library, "AMX") != NULL)
        out->bf16_all_gflops = fmax(
            out->bf16_all_gflops, registers_gflops(tile_loop, TILE_MACS / FEWER_ROUNDS, n_threads));
#endif
    return measure_products(s, out);
}

/* ---- figures and bounds --------------------------------------------------------------------- */

/* GB/s of all threads over a working set of `bytes`. */
static double memory_rate(const bench_roof *r, double bytes)
{
    int i = 0;
    while (i < ROOF_SIZES && bytes > (double)bench_roof_bytes[i])
        i++;
    if (i == 0 || i == ROOF_SIZES)
        return r->triad_all_gbs[i == 0 ? 0 : ROOF_SIZES - 1];
    double below = (double)bench_roof_bytes[i - 1], above = (double)bench_roof_bytes[i];
    double share = log(bytes / below) / log(above / below);
    return r->triad_all_gbs[i - 1] + share * (r->triad_all_gbs[i] - r->triad_all_gbs[i - 1]);
}

double bench_bound(const bench_roof *r, dtype compute, double flops, double bytes,
                   const char **limit, double *rate)
{
    double gbs = memory_rate(r, bytes), gflops = r->fma_all_gflops;
    if (compute == DTYPE_BF16)
        gflops = fmax(gflops, fmax(r->bf16_all_gflops, r->bf16_gflops));
    double compute_s = flops / (1e9 * gflops), memory_s = bytes / (1e9 * gbs);
    *limit = compute_s <= memory_s ? "memory" : gflops > r->fma_all_gflops ? "bf16" : "fma";
    *rate = compute_s > memory_s ? gflops : gbs;
    return compute_s > memory_s ? compute_s : memory_s;
}

/* The i-th figure and its key; NULL after the last one. */
static double *roof_figure(bench_roof *r, int i, char *key, size_t key_bytes)
{
    if (i < 2 * ROOF_SIZES) {
        bool is_one = i % 2 == 0;
        snprintf(key, key_bytes, "triad_%zuk_%s_gbs", bench_roof_bytes[i / 2] >> 10,
                 is_one ? "one" : "all");
        return is_one ? &r->triad_one_gbs[i / 2] : &r->triad_all_gbs[i / 2];
    }
    static const char *const names[] = {"fma_one_gflops", "fma_all_gflops", "bf16_all_gflops",
                                        "sgemm_gflops", "bf16_gflops"};
    double *figures[] = {&r->fma_one_gflops, &r->fma_all_gflops, &r->bf16_all_gflops,
                         &r->sgemm_gflops, &r->bf16_gflops};
    i -= 2 * ROOF_SIZES;
    if (i >= (int)(sizeof names / sizeof *names))
        return NULL;
    snprintf(key, key_bytes, "%s", names[i]);
    return figures[i];
}

static void merge_line(bench_roof *r, const char *line)
{
    char key[48];
    double *figure;
    for (int i = 0; (figure = roof_figure(r, i, key, sizeof key)) != NULL; i++) {
        size_t n = strlen(key);
        if (strncmp(line, key, n) == 0 && line[n] == ',' && atof(line + n + 1) > *figure)
            *figure = atof(line + n + 1);
    }
}

void bench_roof_merge(bench_roof *r, const char *path)
{
    char line[80];
    int threads = 0;
    FILE *f = fopen(path, "r");
    while (f != NULL && fgets(line, sizeof line, f) != NULL) {
        sscanf(line, "threads,%d", &threads);
        if (threads == r->n_threads)
            merge_line(r, line);
    }
    if (f != NULL)
        fclose(f);
}

fsdp_status bench_roof_write(const bench_roof *r, const char *path)
{
    bench_roof copy = *r;
    char key[48];
    double *figure;
    FILE *f = fopen(path, "w");
    if (f == NULL)
        return fsdp_error(FSDP_EIO, "pass a path that can be written", "cannot write %s", path);
    fprintf(f, "key,value\nthreads,%d\n", r->n_threads);
    for (int i = 0; (figure = roof_figure(&copy, i, key, sizeof key)) != NULL; i++)
        fprintf(f, "%s,%.1f\n", key, *figure);
    if (fclose(f) != 0)
        return fsdp_error(FSDP_EIO, "free space on that disk", "cannot write %s", path);
    return FSDP_OK;
}
