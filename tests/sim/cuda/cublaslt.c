/* cublaslt.c -- the products of cuBLASLt for the stand-in. See include/cublasLt.h.
 *
 * Matrices are stored by columns: element (i,j) is at i + j * ld. A sum over k starts at some k,
 * goes down, and wraps around, so that nobody comes to rely on one order. The start depends on the
 * problem and on the alignments that the algorithm was chosen for. Then beta * C and the bias are
 * added and the sum is rounded. For bf16 the sum is also rounded between these two additions, as on
 * an H100.
 *
 * The stand-in refuses what a GPU would refuse or answer with wrong values: layouts that do not fit
 * each other or their leading dimension; sums that round operands or are split over blocks; an
 * algorithm of another problem; pointers with less alignment than was promised; a workspace that is
 * too small. The search for an algorithm sets the runtime's last error, as the library does for
 * errors that it handles itself. A product longer than WORKSPACE_K uses a workspace if the
 * preference allows one. It fills the workspace with NaN and checks it at the end, a byte for each
 * element of D. If somebody else has written to the workspace meanwhile, elements of D are NaN. */
#include <cublasLt.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "common/base/dtype.h"
#include "tests/sim/cuda/sim.h"

enum { WORKSPACE_K = 48, WORKSPACE_BYTES = 4096 };

struct cublasLtContext {
    int nothing;
};
struct sim_matrix_layout {
    cudaDataType_t type;
    uint64_t rows, cols;
    int64_t ld;
};
struct sim_matmul_desc {
    cublasOperation_t trans_a, trans_b;
    cublasLtEpilogue_t epilogue;
    cudaDataType_t bias_type;
    const void *bias;
};
struct sim_matmul_preference {
    uint64_t workspace_bytes;
    uint32_t reduction_schemes;
    uint32_t alignment[4]; /* of A, B, C, D */
};

/* The contents of an algorithm, which the caller cannot see. */
typedef struct sim_algorithm {
    uint64_t problem; /* a hash of the descriptions */
    uint64_t workspace_bytes;
    uint32_t alignment[4];
    uint64_t bias_alignment;
} sim_algorithm;
_Static_assert(sizeof(sim_algorithm) <= sizeof(cublasLtMatmulAlgo_t), "an algorithm is opaque");

const char *cublasLtGetStatusString(cublasStatus_t status)
{
#define NAME(status)                                                                               \
    case status:                                                                                   \
        return #status;
    switch (status) {
        NAME(CUBLAS_STATUS_SUCCESS)
        NAME(CUBLAS_STATUS_NOT_INITIALIZED)
        NAME(CUBLAS_STATUS_ALLOC_FAILED)
        NAME(CUBLAS_STATUS_INVALID_VALUE)
        NAME(CUBLAS_STATUS_ARCH_MISMATCH)
        NAME(CUBLAS_STATUS_EXECUTION_FAILED)
        NAME(CUBLAS_STATUS_NOT_SUPPORTED)
    }
    return "an unknown status";
}

/* ---- descriptions ---------------------------------------------------------------------------- */

static cublasStatus_t created(const void *x)
{
    return x ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_ALLOC_FAILED;
}

static void *copy_of(const void *object, size_t bytes)
{
    void *copy = malloc(bytes);
    return copy != NULL ? memcpy(copy, object, bytes) : NULL;
}

#define DESTROYS(name, type)                                                                       \
    cublasStatus_t name(type x)                                                                    \
    {                                                                                              \
        free(x);                                                                                   \
        return x ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_INVALID_VALUE;                            \
    }
DESTROYS(cublasLtDestroy, cublasLtHandle_t)
DESTROYS(cublasLtMatmulDescDestroy, cublasLtMatmulDesc_t)
DESTROYS(cublasLtMatrixLayoutDestroy, cublasLtMatrixLayout_t)
DESTROYS(cublasLtMatmulPreferenceDestroy, cublasLtMatmulPreference_t)

/* An attribute has one valid size. */
static cublasStatus_t set(void *field, size_t field_bytes, const void *value, size_t bytes)
{
    if (value == NULL || bytes != field_bytes)
        return CUBLAS_STATUS_INVALID_VALUE;
    memcpy(field, value, bytes);
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtCreate(cublasLtHandle_t *handle)
{
    *handle = calloc(1, sizeof **handle);
    return created(*handle);
}

cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t *desc, cublasComputeType_t compute,
                                        cudaDataType_t scale_type)
{
    const struct sim_matmul_desc made = {.epilogue = CUBLASLT_EPILOGUE_DEFAULT};
    if (compute != CUBLAS_COMPUTE_32F || scale_type != CUDA_R_32F)
        return CUBLAS_STATUS_NOT_SUPPORTED;
    *desc = copy_of(&made, sizeof made);
    return created(*desc);
}

cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t desc,
                                              cublasLtMatmulDescAttributes_t attribute,
                                              const void *value, size_t bytes)
{
    switch (attribute) {
    case CUBLASLT_MATMUL_DESC_TRANSA:
        return set(&desc->trans_a, sizeof desc->trans_a, value, bytes);
    case CUBLASLT_MATMUL_DESC_TRANSB:
        return set(&desc->trans_b, sizeof desc->trans_b, value, bytes);
    case CUBLASLT_MATMUL_DESC_EPILOGUE:
        return set(&desc->epilogue, sizeof desc->epilogue, value, bytes);
    case CUBLASLT_MATMUL_DESC_BIAS_POINTER:
        return set(&desc->bias, sizeof desc->bias, value, bytes);
    case CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE:
        return set(&desc->bias_type, sizeof desc->bias_type, value, bytes);
    }
    return CUBLAS_STATUS_INVALID_VALUE;
}

cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t *layout, cudaDataType_t type,
                                          uint64_t rows, uint64_t cols, int64_t ld)
{
    const struct sim_matrix_layout made = {type, rows, cols, ld};
    if (rows == 0 || cols == 0 || ld < (int64_t)rows)
        return CUBLAS_STATUS_INVALID_VALUE;
    *layout = copy_of(&made, sizeof made);
    return created(*layout);
}

cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t *preference)
{
    const struct sim_matmul_preference made = {.reduction_schemes = CUBLASLT_REDUCTION_SCHEME_MASK,
                                               .alignment = {256, 256, 256, 256}};
    *preference = copy_of(&made, sizeof made);
    return created(*preference);
}

cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t preference,
                                                    cublasLtMatmulPreferenceAttributes_t attribute,
                                                    const void *value, size_t bytes)
{
    struct sim_matmul_preference *p = preference;
    if (attribute == CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES)
        return set(&p->workspace_bytes, sizeof p->workspace_bytes, value, bytes);
    if (attribute == CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK)
        return set(&p->reduction_schemes, sizeof p->reduction_schemes, value, bytes);
    const unsigned matrix =
        (unsigned)attribute - (unsigned)CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES;
    return matrix < 4 ? set(&p->alignment[matrix], sizeof *p->alignment, value, bytes)
                      : CUBLAS_STATUS_INVALID_VALUE;
}

/* ---- a product ------------------------------------------------------------------------------- */

/* A product and all its inputs: the arguments of the stream's task. */
typedef struct product {
    struct sim_matmul_desc desc;
    struct sim_matrix_layout a, b, c, d;
    const void *a_ptr, *b_ptr, *c_ptr;
    void *d_ptr, *workspace;
    float alpha, beta;
    uint64_t k, workspace_bytes;
    uint64_t first_k; /* sums begin at first_k, go down in k, and wrap around */
} product;

static uint64_t hash(uint64_t sum, const struct sim_matrix_layout *x)
{
    const uint64_t words[] = {x->rows, x->cols, (uint64_t)x->ld, (uint64_t)x->type};
    for (int i = 0; i < 4; i++)
        sum = (sum ^ words[i]) * 0x9e3779b97f4a7c15u;
    return sum;
}

static uint64_t problem_of(const product *p)
{
    uint64_t sum = (uint64_t)p->desc.trans_a | (uint64_t)p->desc.trans_b << 1;
    sum |= (uint64_t)p->desc.epilogue << 2 | (uint64_t)p->desc.bias_type << 8;
    return hash(hash(hash(hash(sum, &p->a), &p->b), &p->c), &p->d);
}

/* Check shapes and types, and set k. */
static cublasStatus_t check(product *p)
{
    const bool ta = p->desc.trans_a == CUBLAS_OP_T, tb = p->desc.trans_b == CUBLAS_OP_T;
    const uint64_t m = ta ? p->a.cols : p->a.rows, n = tb ? p->b.rows : p->b.cols;
    p->k = ta ? p->a.rows : p->a.cols;
    if ((tb ? p->b.cols : p->b.rows) != p->k || p->d.rows != m || p->d.cols != n ||
        p->c.rows != m || p->c.cols != n)
        return CUBLAS_STATUS_INVALID_VALUE;
    if (p->a.type != p->b.type || p->c.type != p->d.type ||
        (p->d.type != p->a.type && p->d.type != CUDA_R_32F))
        return CUBLAS_STATUS_NOT_SUPPORTED;
    if (p->a.type == CUDA_R_16BF && sim_sm() < 80)
        return CUBLAS_STATUS_ARCH_MISMATCH;
    if (p->desc.epilogue == CUBLASLT_EPILOGUE_BIAS && p->desc.bias_type != p->d.type)
        return CUBLAS_STATUS_NOT_SUPPORTED;
    return CUBLAS_STATUS_SUCCESS;
}

/* Whether the library that is simulated has an algorithm for the product. */
static bool is_supported(const product *p, const struct sim_matmul_preference *preference)
{
    if (p->desc.epilogue == CUBLASLT_EPILOGUE_BIAS && sim_number("FSDP_SIM_LT_EPILOGUE", 1) == 0)
        return false;
    for (int i = 0; i < 4; i++)
        if (preference->alignment[i] < sim_number("FSDP_SIM_LT_ALIGNMENT", 1))
            return false;
    return preference->reduction_schemes == CUBLASLT_REDUCTION_SCHEME_NONE;
}

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t handle, cublasLtMatmulDesc_t desc,
                                              cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                              cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                              cublasLtMatmulPreference_t preference, int n_wanted,
                                              cublasLtMatmulHeuristicResult_t *results,
                                              int *n_found)
{
    *n_found = 0;
    if (handle == NULL || n_wanted < 1)
        return CUBLAS_STATUS_INVALID_VALUE;
    product p = {.desc = *desc, .a = *a, .b = *b, .c = *c, .d = *d};
    cublasStatus_t status = check(&p);
    if (status == CUBLAS_STATUS_SUCCESS && !is_supported(&p, preference))
        status = CUBLAS_STATUS_NOT_SUPPORTED;
    if (status != CUBLAS_STATUS_SUCCESS)
        return status;
    const uintptr_t bias = (uintptr_t)desc->bias;
    sim_algorithm algorithm = {.problem = problem_of(&p), .bias_alignment = bias & -bias};
    if (p.k > WORKSPACE_K && preference->workspace_bytes >= WORKSPACE_BYTES)
        algorithm.workspace_bytes = WORKSPACE_BYTES;
    memcpy(algorithm.alignment, preference->alignment, sizeof algorithm.alignment);
    const int n_missing = (int)sim_number("FSDP_SIM_LT_MISSING", 0);
    for (; *n_found <= n_missing && *n_found < n_wanted; ++*n_found)
        results[*n_found] = (cublasLtMatmulHeuristicResult_t){.state = CUBLAS_STATUS_NOT_SUPPORTED};
    if (*n_found > n_missing) {
        results += n_missing;
        *results = (cublasLtMatmulHeuristicResult_t){.workspaceSize = algorithm.workspace_bytes};
        memcpy(&results->algo, &algorithm, sizeof algorithm);
    }
    (void)sim_fail(cudaErrorInvalidValue);
    return CUBLAS_STATUS_SUCCESS;
}

static float load(const void *x, uint64_t i, cudaDataType_t type)
{
    return type == CUDA_R_32F ? ((const float *)x)[i] : f32_from_bf16(((const uint16_t *)x)[i]);
}

/* A dense copy, row by row: out[i,j] = op(x)(i,j), `rows` x `cols`. */
static float *rows_of(const struct sim_matrix_layout *x, const void *ptr, bool transposed,
                      uint64_t rows, uint64_t cols)
{
    const uint64_t ld = (uint64_t)x->ld;
    float *out = malloc(rows * cols * sizeof *out);
    for (uint64_t i = 0; out && i < rows; i++)
        for (uint64_t j = 0; j < cols; j++)
            out[i * cols + j] = load(ptr, transposed ? j + i * ld : i + j * ld, x->type);
    return out;
}

/* Compute column j of D from the sums over k. */
static void finish(const product *p, const float *sum, uint64_t j)
{
    for (uint64_t i = 0; i < p->d.rows; i++) {
        float x = p->alpha * sum[i];
        if (p->beta != 0.0f)
            x += p->beta * load(p->c_ptr, i + j * (uint64_t)p->c.ld, p->c.type);
        if (p->beta != 0.0f && p->d.type == CUDA_R_16BF)
            x = f32_from_bf16(bf16_from_f32(x));
        if (p->desc.epilogue == CUBLASLT_EPILOGUE_BIAS)
            x += load(p->desc.bias, i, p->desc.bias_type);
        if (p->workspace_bytes > 0)
            x = ((const unsigned char *)p->workspace)[i % p->workspace_bytes] == 0xFF ? x : NAN;
        const uint64_t at = i + j * (uint64_t)p->d.ld;
        if (p->d.type == CUDA_R_32F)
            ((float *)p->d_ptr)[at] = x;
        else
            ((uint16_t *)p->d_ptr)[at] = bf16_from_f32(x);
    }
}

static fsdp_status multiply(void *args, int n_threads)
{
    const product *p = args;
    const uint64_t m = p->d.rows, n = p->d.cols, k = p->k;
    float *a = rows_of(&p->a, p->a_ptr, p->desc.trans_a != CUBLAS_OP_T, k, m); /* [k,m] */
    float *b = rows_of(&p->b, p->b_ptr, p->desc.trans_b != CUBLAS_OP_T, n, k); /* [n,k] */
    float *sum = malloc(m * sizeof *sum);
    (void)n_threads;
    if (p->workspace_bytes > 0)
        memset(p->workspace, 0xFF, p->workspace_bytes);
    for (uint64_t j = 0; a && b && sum && j < n; j++) {
        memset(sum, 0, m * sizeof *sum);
        for (uint64_t step = 0; step < k; step++) {
            const uint64_t l = (p->first_k + k - step) % k;
            for (uint64_t i = 0; i < m; i++)
                sum[i] += a[l * m + i] * b[j * k + l];
        }
        finish(p, sum, j);
    }
    const bool done = a && b && sum;
    free(a), free(b), free(sum);
    return done ? FSDP_OK : fsdp_error(FSDP_ENOMEM, "", "cublasLtMatmul: no memory");
}

static bool aligned(const void *ptr, uint64_t alignment)
{
    return alignment == 0 || (uintptr_t)ptr % alignment == 0;
}

/* Each algorithm adds in its own order, derived from the criteria it was chosen by. */
static uint64_t order_of(const sim_algorithm *x)
{
    uint64_t sum = x->problem ^ x->bias_alignment;
    for (int i = 0; i < 4; i++)
        sum = (sum ^ x->alignment[i]) * 0x9e3779b97f4a7c15u;
    return sum >> 32;
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t handle, cublasLtMatmulDesc_t desc, const void *alpha,
                              const void *a, cublasLtMatrixLayout_t a_layout, const void *b,
                              cublasLtMatrixLayout_t b_layout, const void *beta, const void *c,
                              cublasLtMatrixLayout_t c_layout, void *d,
                              cublasLtMatrixLayout_t d_layout, const cublasLtMatmulAlgo_t *algo,
                              void *workspace, size_t workspace_bytes, cudaStream_t q)
{
    product p = {.desc = *desc,
                 .a = *a_layout,
                 .b = *b_layout,
                 .c = *c_layout,
                 .d = *d_layout,
                 .a_ptr = a,
                 .b_ptr = b,
                 .c_ptr = c,
                 .d_ptr = d,
                 .workspace = workspace,
                 .alpha = *(const float *)alpha,
                 .beta = *(const float *)beta};
    sim_algorithm algorithm;
    cublasStatus_t status = handle ? check(&p) : CUBLAS_STATUS_NOT_INITIALIZED;
    if (status != CUBLAS_STATUS_SUCCESS)
        return status;
    memcpy(&algorithm, algo, sizeof algorithm);
    p.workspace_bytes = algorithm.workspace_bytes;
    p.first_k = order_of(&algorithm) % p.k;
    const bool has_bias = desc->epilogue == CUBLASLT_EPILOGUE_BIAS;
    if (algorithm.problem != problem_of(&p) || workspace_bytes < algorithm.workspace_bytes ||
        (algorithm.workspace_bytes > 0 && workspace == NULL) || (has_bias && desc->bias == NULL))
        return CUBLAS_STATUS_INVALID_VALUE;
    if (!aligned(a, algorithm.alignment[0]) || !aligned(b, algorithm.alignment[1]) ||
        !aligned(c, algorithm.alignment[2]) || !aligned(d, algorithm.alignment[3]) ||
        (has_bias && !aligned(desc->bias, algorithm.bias_alignment)))
        return CUBLAS_STATUS_INVALID_VALUE;
    sim_load((const void *)(uintptr_t)order_of(&algorithm));
    (void)sim_fail(cudaErrorInvalidValue);
    return stream_launch(sim_stream(q), multiply, &p, sizeof p) == FSDP_OK
               ? CUBLAS_STATUS_SUCCESS
               : CUBLAS_STATUS_EXECUTION_FAILED;
}
