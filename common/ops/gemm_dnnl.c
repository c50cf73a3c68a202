/* gemm_dnnl.c -- the gemm of the fast table: our kernels where they are faster (gemm_fp32.c,
 * gemm_amx.c), else oneDNN's, single-threaded. See cpu_kernels.h.
 *
 * oneDNN divides a product among the OpenMP threads it may use, along k too, which changes the
 * order of the sums. So the calling thread sets the number of threads to 1 around every call of
 * oneDNN. For bf16 that includes creating the primitive: one created for two threads sums
 * differently even if it runs on one. A parallel region of one thread is not enough (measured:
 * other bits for m = 1). In a program linked with clang's libomp, libdnnl.so uses libomp too,
 * because libomp defines libgomp's symbol versions and is found first; test_ops.c checks this.
 *
 * bf16. oneDNN has no plain function for bf16, only "primitives" for given shapes and strides. Each
 * tile creates, runs and destroys one. oneDNN caches the code of the last 1024 primitives, so
 * creating one again takes microseconds; a tile takes hundreds. */
#include "common/ops/cpu_kernels.h"
#include <pthread.h>
#include "common/ops/row_sums.h"

static bool has_fp32, has_amx; /* gemm_fp32, gemm_amx can be called */
static pthread_once_t once = PTHREAD_ONCE_INIT;

/* Multiply by one of our kernels, if one can. Returns whether it did. */
static bool own_multiply(const gemm_args *g)
{
    if (g->a_type != g->b_type)
        return false;
    if (g->a_type == DTYPE_F32) {
        if (has_fp32)
            gemm_fp32(g);
        return has_fp32;
    }
    const bool fits = has_amx && (g->trans_b ? !g->trans_a : g->n <= GEMM_AMX_MAX_N);
    if (fits)
        gemm_amx(g);
    return fits;
}

/* Write which of our kernels are used. Hosts with different ones compute different bits. */
static void own_describe(char *text, size_t text_bytes)
{
    snprintf(text, text_bytes, "%s%s", has_fp32 ? ", fp32 by FMA" : "",
             has_amx ? ", bf16 by AMX" : "");
}

#ifdef FSDP_HAVE_DNNL
#include <dnnl.h>
#include <omp.h>

/* one_thread_begin -- returns the old number of threads, which one_thread_end restores. */
static int one_thread_begin(void)
{
    const int n_threads = omp_get_max_threads();
    omp_set_num_threads(1);
    return n_threads;
}

static void one_thread_end(int n_threads)
{
    omp_set_num_threads(n_threads);
}

static fsdp_status dnnl_failed(const char *call, const gemm_args *g, dnnl_status_t status)
{
    return fsdp_error(FSDP_ENOMEM, "free memory, or pass --ops portable",
                      "%s m %zu n %zu k %zu: status %d, expected 0", call, g->m, g->n, g->k,
                      (int)status);
}

/* A product of two fp32 operands. */
static fsdp_status sgemm(const gemm_args *g)
{
    if (own_multiply(g))
        return FSDP_OK;
    const int n_threads = one_thread_begin();
    const dnnl_status_t status =
        dnnl_sgemm(g->trans_a ? 'T' : 'N', g->trans_b ? 'T' : 'N', (dnnl_dim_t)g->m,
                   (dnnl_dim_t)g->n, (dnnl_dim_t)g->k, 1.0f, g->a, (dnnl_dim_t)g->lda, g->b,
                   (dnnl_dim_t)g->ldb, g->accumulate ? 1.0f : 0.0f, g->c, (dnnl_dim_t)g->ldc);
    one_thread_end(n_threads);
    return status == dnnl_success ? FSDP_OK : dnnl_failed("dnnl_sgemm", g, status);
}

/* ---- what this processor has ----------------------------------------------------------------- */

static dnnl_engine_t engine; /* the CPU; never destroyed */
static dnnl_status_t engine_status;
static bool has_bf16; /* oneDNN has bf16 instructions on this processor */

static bool has_isa(dnnl_cpu_isa_t isa)
{
    return ((unsigned)dnnl_get_effective_cpu_isa() & (unsigned)isa) == (unsigned)isa;
}

static void open_all(void)
{
    engine_status = dnnl_engine_create(&engine, dnnl_cpu, 0);
    has_bf16 = has_isa(dnnl_cpu_isa_avx512_core_bf16);
    has_fp32 = gemm_fp32_open(has_isa(dnnl_cpu_isa_avx512_core), has_isa(dnnl_cpu_isa_avx2));
    has_amx = has_isa(dnnl_cpu_isa_avx512_core_amx) && gemm_amx_open();
}

void ops_cpu_library(char *text, size_t text_bytes)
{
    const dnnl_version_t *v = dnnl_version();
    char kernels[40];
    pthread_once(&once, open_all);
    own_describe(kernels, sizeof kernels);
    snprintf(text, text_bytes, "oneDNN %d.%d.%d, instructions %#x%s", v->major, v->minor, v->patch,
             (unsigned)dnnl_get_effective_cpu_isa(), kernels);
}

/* ---- bf16 by fp32 products ------------------------------------------------------------------- */

enum { KC = 256, NC = 384, PAD = 16 };

/* A piece [rows,cols] of a stored operand, which begins at element `at`. */
typedef struct piece {
    const void *x;
    size_t at, rows, cols;
    dtype type;
} piece;

/* buf[r * (cols + PAD) + c] = element (r, c) of the piece, whose stored stride is ld. */
ROW_FN void piece_copy(const piece *p, size_t ld, float *restrict buf, dtype type)
{
    for (size_t r = 0; r < p->rows; r++)
        for (size_t c = 0; c < p->cols; c++)
            buf[r * (p->cols + PAD) + c] = row_load(p->x, p->at + r * ld + c, type);
}

/* Returns the piece as fp32: in place, or expanded into buf. *ld: in the stored stride, out the
 * stride of the returned array. */
static const float *piece_as_f32(piece p, size_t *ld, float *buf)
{
    if (p.type == DTYPE_F32)
        return (const float *)p.x + p.at;
    piece_copy(&p, *ld, buf, DTYPE_BF16);
    *ld = p.cols + PAD;
    return buf;
}

/* sgemm by pieces: KC x NC elements of b, and a piece of a of the same depth, at a time. bf16
 * operands are expanded to fp32 on the stack, which is exact. */
static fsdp_status sgemm_by_pieces(const gemm_args *g)
{
    _Alignas(64) float a[GEMM_MAX_M * (KC + PAD)];
    _Alignas(64) float b[NC * (KC + PAD)];
    FSDP_ASSERT(g->m <= GEMM_MAX_M && (g->left == NULL || g->n <= NC));
    for (size_t col = 0; col < g->n; col += NC) {
        for (size_t p0 = 0; p0 < g->k; p0 += KC) {
            const size_t k = min_size(KC, g->k - p0), n = min_size(NC, g->n - col);
            gemm_args part = *g;
            part.c += col;
            part.n = n;
            part.k = k;
            part.a_type = part.b_type = DTYPE_F32;
            part.accumulate = g->accumulate || p0 > 0;
            part.streams = g->streams && p0 + k == g->k;
            part.left = p0 + k == g->k ? g->left : NULL;
            part.a = piece_as_f32(g->trans_a ? (piece){g->a, p0 * g->lda, k, g->m, g->a_type}
                                             : (piece){g->a, p0, g->m, k, g->a_type},
                                  &part.lda, a);
            part.b = piece_as_f32(g->trans_b ? (piece){g->b, col * g->ldb + p0, n, k, g->b_type}
                                             : (piece){g->b, p0 * g->ldb + col, k, n, g->b_type},
                                  &part.ldb, b);
            TRY(sgemm(&part));
        }
    }
    return FSDP_OK;
}

/* ---- bf16 by oneDNN -------------------------------------------------------------------------- */

/* For fewer elements of b, expanding to fp32 is faster than creating a primitive. */
static const size_t MIN_BF16_ELEMS = (size_t)1 << 13;

#define STEP(call)                                                                                 \
    do {                                                                                           \
        const dnnl_status_t step_status_ = (call);                                                 \
        if (step_status_ != dnnl_success)                                                          \
            return step_status_;                                                                   \
    } while (0)

/* oneDNN 3 made memory descriptors opaque and dropped the operation descriptor. */
#if DNNL_VERSION_MAJOR >= 3
#define DESC_PTR(d) (d)
#else
#define DESC_PTR(d) (&(d))
#endif

enum { A, B, C, N_OPERANDS };

/* One product: the oneDNN objects to destroy after it, in the order of their creation. */
typedef struct bf16_product {
    dnnl_memory_desc_t desc[N_OPERANDS];
    dnnl_post_ops_t post_ops;
    dnnl_primitive_attr_t attr;
    dnnl_primitive_desc_t primitive_desc;
    dnnl_primitive_t primitive;
    dnnl_memory_t memory[N_OPERANDS];
    dnnl_stream_t stream;
} bf16_product;

static dnnl_status_t desc_make(dnnl_memory_desc_t *d, size_t rows, size_t cols, size_t ld,
                               bool trans, dnnl_data_type_t type)
{
    const dnnl_dims_t dims = {(dnnl_dim_t)rows, (dnnl_dim_t)cols};
    const dnnl_dims_t strides = {trans ? 1 : (dnnl_dim_t)ld, trans ? (dnnl_dim_t)ld : 1};
#if DNNL_VERSION_MAJOR >= 3
    return dnnl_memory_desc_create_with_strides(d, 2, dims, type, strides);
#else
    return dnnl_memory_desc_init_by_strides(d, 2, dims, type, strides);
#endif
}

/* "+ c" is an operation appended to the product: a sum with the old contents of the output. */
static dnnl_status_t attr_make(bf16_product *p, bool accumulate)
{
    STEP(dnnl_primitive_attr_create(&p->attr));
    if (!accumulate)
        return dnnl_success;
    STEP(dnnl_post_ops_create(&p->post_ops));
#if DNNL_VERSION_MAJOR >= 3
    STEP(dnnl_post_ops_append_sum(p->post_ops, 1.0f, 0, dnnl_data_type_undef));
#else
    STEP(dnnl_post_ops_append_sum(p->post_ops, 1.0f));
#endif
    return dnnl_primitive_attr_set_post_ops(p->attr, p->post_ops);
}

static dnnl_status_t primitive_make(bf16_product *p)
{
#if DNNL_VERSION_MAJOR >= 3
    STEP(dnnl_matmul_primitive_desc_create(&p->primitive_desc, engine, p->desc[A], p->desc[B], NULL,
                                           p->desc[C], p->attr));
#else
    dnnl_matmul_desc_t d;
    STEP(dnnl_matmul_desc_init(&d, &p->desc[A], &p->desc[B], NULL, &p->desc[C]));
    STEP(dnnl_primitive_desc_create(&p->primitive_desc, &d, p->attr, engine, NULL));
#endif
    return dnnl_primitive_create(&p->primitive, p->primitive_desc);
}

static dnnl_status_t product_run(bf16_product *p, const gemm_args *g)
{
    STEP(desc_make(&p->desc[A], g->m, g->k, g->lda, g->trans_a, dnnl_bf16));
    STEP(desc_make(&p->desc[B], g->k, g->n, g->ldb, g->trans_b, dnnl_bf16));
    STEP(desc_make(&p->desc[C], g->m, g->n, g->ldc, false, dnnl_f32));
    STEP(attr_make(p, g->accumulate));
    STEP(primitive_make(p));
    STEP(dnnl_memory_create(&p->memory[A], DESC_PTR(p->desc[A]), engine, (void *)g->a));
    STEP(dnnl_memory_create(&p->memory[B], DESC_PTR(p->desc[B]), engine, (void *)g->b));
    STEP(dnnl_memory_create(&p->memory[C], DESC_PTR(p->desc[C]), engine, g->c));
    STEP(dnnl_stream_create(&p->stream, engine, dnnl_stream_default_flags));
    const dnnl_exec_arg_t args[] = {{DNNL_ARG_SRC, p->memory[A]},
                                    {DNNL_ARG_WEIGHTS, p->memory[B]},
                                    {DNNL_ARG_DST, p->memory[C]}};
    STEP(dnnl_primitive_execute(p->primitive, p->stream, N_OPERANDS, args));
    return dnnl_stream_wait(p->stream);
}

/* Objects that were not created are NULL, which the calls accept. */
static void product_free(bf16_product *p)
{
    dnnl_stream_destroy(p->stream);
    for (int i = 0; i < N_OPERANDS; i++)
        dnnl_memory_destroy(p->memory[i]);
    dnnl_primitive_destroy(p->primitive);
    dnnl_primitive_desc_destroy(p->primitive_desc);
    dnnl_primitive_attr_destroy(p->attr);
    dnnl_post_ops_destroy(p->post_ops);
#if DNNL_VERSION_MAJOR >= 3
    for (int i = 0; i < N_OPERANDS; i++)
        dnnl_memory_desc_destroy(p->desc[i]);
#endif
}

static fsdp_status gemm_bf16(const gemm_args *g)
{
    bf16_product p = {0};
    const int n_threads = one_thread_begin();
    const dnnl_status_t status = product_run(&p, g);
    product_free(&p);
    one_thread_end(n_threads);
    if (status == dnnl_unimplemented) /* reported before the product runs */
        return sgemm_by_pieces(g);
    return status == dnnl_success ? FSDP_OK : dnnl_failed("oneDNN bf16 matmul", g, status);
}

fsdp_status gemm_dnnl(const gemm_args *g)
{
    pthread_once(&once, open_all);
    if (engine_status != dnnl_success)
        return dnnl_failed("dnnl_engine_create for", g, engine_status);
    if (g->a_type == DTYPE_F32 && g->b_type == DTYPE_F32)
        return sgemm(g);
    if (own_multiply(g))
        return FSDP_OK;
    const bool pays = has_bf16 && g->a_type == g->b_type && g->n * g->k >= MIN_BF16_ELEMS;
    return pays ? gemm_bf16(g) : sgemm_by_pieces(g);
}

bool gemm_dnnl_by_rows(dtype type)
{
    pthread_once(&once, open_all);
    return has_fp32 && (type == DTYPE_F32 || has_amx || !has_bf16);
}
#else
static void open_all(void)
{
#ifdef __x86_64__
    has_fp32 = gemm_fp32_open(__builtin_cpu_supports("avx512f"),
                              __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"));
    has_amx = gemm_amx_open();
#endif
}

fsdp_status gemm_dnnl(const gemm_args *g)
{
    pthread_once(&once, open_all);
    return own_multiply(g) ? FSDP_OK : gemm_portable(g);
}

bool gemm_dnnl_by_rows(dtype type)
{
    (void)type;
    return true;
}

void ops_cpu_library(char *text, size_t text_bytes)
{
    char kernels[40];
    pthread_once(&once, open_all);
    own_describe(kernels, sizeof kernels);
    snprintf(text, text_bytes, "no oneDNN%s", kernels);
}
#endif
