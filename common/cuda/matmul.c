/* matmul.c -- matrix products by cuBLASLt.
 *
 *   matmul_open -> fast_matmul ... -> matmul_close       once for each device
 *
 * cuBLASLt is column-major: our row-major [m,n] is its matrix of n rows and m columns. So it
 * computes out^T = op(b)^T op(a)^T, and nothing is moved: its A is our b and its B is our a.
 *
 *     a stored [m,k]: its B, k rows, as it is           a stored [k,m]: m rows, transposed
 *     b stored [k,n]: its A, n rows, as it is           b stored [n,k]: k rows, transposed
 *
 * A row's stride is its leading dimension.
 *
 * Sums are fp32 (CUBLAS_COMPUTE_32F, which rounds no operand). An element is rounded once: cuBLASLt
 * adds a bias or a residual in the same call if it has the type of out and an algorithm can add it;
 * else a kernel adds it to products of fp32. A bias and a residual of bf16 never go into one call:
 * on an H100 cuBLASLt rounded the sum to bf16 between the two. If cuBLASLt has no algorithm for the
 * products alone, the portable kernel computes them.
 *
 * Equal arguments give equal bits, on one model of GPU and one version of the library. cuBLASLt
 * promises that for one algorithm whose sums are not split among blocks (REDUCTION_SCHEME_NONE). A
 * plan holds the algorithm for all calls of the same shape, strides, types, form and alignment. If
 * matrices of one shape lie one after the other in an array, all of them have the same plan: a
 * plan's alignment divides the matrix's bytes too (7 x 36 floats are 1008 bytes: at most 16).
 * Nothing else is promised: a row may have other bits in a product of more rows. So results that
 * must be equal on any number of ranks must be computed by calls of the same shape.
 * [cuBLAS, "Results Reproducibility"] */
#include <cublasLt.h>
#include <search.h>
#include <stdlib.h>
#include "common/cuda/cuda_impl.h"
#include "common/cuda/kernels.h"

/* device_alloc's alignment, and the largest workspace of a call. */
enum { MAX_ALIGNMENT = 64, MAX_WORKSPACE_BYTES = 32 << 20 };
/* The number of algorithms to request; the library tells for each whether it can be used. */
enum { MAX_PROPOSALS = 8 };

/* The calls that a plan is for. Keys are compared as bytes, so all bytes are set. */
typedef struct plan_key {
    uint64_t m, n, k, a_stride, out_stride;
    uint32_t a_alignment, b_alignment, out_alignment, bias_alignment; /* bias 0: no bias */
    uint8_t trans_a, trans_b, adds, type, out_type, zero[3]; /* adds: there is a C to add */
} plan_key;

typedef struct matmul_plan {
    plan_key key;
    cublasLtMatmulDesc_t product;
    cublasLtMatrixLayout_t a, b, out;
    bool has_algorithm;
    cublasLtMatmulAlgo_t algorithm;
    size_t workspace_bytes;
} matmul_plan;

struct cuda_matmul {
    bool has_bf16; /* the GPU multiplies bf16: from sm_80 on */
    cublasLtHandle_t handle;
    void *plans; /* tsearch */
};

static fsdp_status lt_status(cublasStatus_t status, const char *what)
{
    if (status == CUBLAS_STATUS_SUCCESS)
        return FSDP_OK;
    if (status == CUBLAS_STATUS_ALLOC_FAILED)
        return fsdp_error(FSDP_ENOMEM, "use a smaller --batch-size, --seq-len or model",
                          "matmul: %s: no memory", what);
    return fsdp_error(FSDP_EDEVICE,
                      "bf16 takes a GPU of compute capability 8.0 or more; --ops portable works on "
                      "all of them",
                      "matmul: %s: %s", what, cublasLtGetStatusString(status));
}

/* ---- plans ----------------------------------------------------------------------------------- */

static void plan_free(void *plan)
{
    matmul_plan *p = plan;
    if (p->product != NULL)
        (void)cublasLtMatmulDescDestroy(p->product);
    const cublasLtMatrixLayout_t layouts[] = {p->a, p->b, p->out};
    for (int i = 0; i < 3; i++)
        if (layouts[i] != NULL)
            (void)cublasLtMatrixLayoutDestroy(layouts[i]);
    free(p);
}

static int plan_compare(const void *a, const void *b)
{
    return memcmp(&((const matmul_plan *)a)->key, &((const matmul_plan *)b)->key, sizeof(plan_key));
}

/* The alignment of every matrix in an array of matrices of `bytes` each that begins at ptr. */
static uint32_t alignment_of(const void *ptr, size_t bytes)
{
    const uintptr_t bits = (uintptr_t)ptr | bytes | MAX_ALIGNMENT;
    return (uint32_t)(bits & -bits);
}

static plan_key key_of(const matmul_args *a)
{
    const size_t bytes = dtype_bytes(a->type);
    const size_t a_stride = matmul_a_stride(a), out_stride = row_stride(a->out_stride, a->n);
    const size_t a_bytes = (a->trans_a ? a->k : a->m) * a_stride * bytes;
    const size_t out_bytes = a->m * out_stride * dtype_bytes(a->out_type);
    plan_key key = {.m = a->m,
                    .n = a->n,
                    .k = a->k,
                    .a_stride = a_stride,
                    .out_stride = out_stride,
                    .a_alignment = alignment_of(a->a, a_bytes),
                    .b_alignment = alignment_of(a->b, a->k * a->n * bytes),
                    .out_alignment = alignment_of(a->out, out_bytes),
                    .trans_a = a->trans_a,
                    .trans_b = a->trans_b,
                    .adds = a->accumulate || a->residual,
                    .type = (uint8_t)a->type,
                    .out_type = (uint8_t)a->out_type};
    const uint32_t of_residual = alignment_of(a->residual, out_bytes);
    if (of_residual < key.out_alignment)
        key.out_alignment = of_residual;
    if (a->bias)
        key.bias_alignment = alignment_of(a->bias, a->n * bytes);
    return key;
}

static cudaDataType_t lt_type(dtype t)
{
    return t == DTYPE_F32 ? CUDA_R_32F : CUDA_R_16BF;
}

#define SET(p, attribute, value)                                                                   \
    TRY(lt_status(cublasLtMatmulDescSetAttribute((p)->product, CUBLASLT_MATMUL_DESC_##attribute,   \
                                                 &(value), sizeof(value)),                         \
                  #attribute))

/* Make the descriptors of the product and of its matrices. */
static fsdp_status plan_describe(matmul_plan *p)
{
    const plan_key *key = &p->key;
    const cublasOperation_t as_it_is = CUBLAS_OP_N, transposed = CUBLAS_OP_T;
    const cudaDataType_t type = lt_type(key->type), out_type = lt_type(key->out_type);
    const uint64_t m = key->m, n = key->n, k = key->k;
    TRY(lt_status(cublasLtMatmulDescCreate(&p->product, CUBLAS_COMPUTE_32F, CUDA_R_32F), "form"));
    SET(p, TRANSA, *(key->trans_b ? &transposed : &as_it_is));
    SET(p, TRANSB, *(key->trans_a ? &transposed : &as_it_is));
    if (key->bias_alignment > 0) {
        const cublasLtEpilogue_t epilogue = CUBLASLT_EPILOGUE_BIAS;
        /* the choice of the algorithm uses the pointer's alignment; nobody dereferences it */
        const uintptr_t like_bias = key->bias_alignment;
        SET(p, EPILOGUE, epilogue);
        SET(p, BIAS_DATA_TYPE, type);
        SET(p, BIAS_POINTER, like_bias);
    }
    const uint64_t b_rows = key->trans_b ? k : n, b_cols = key->trans_b ? n : k;
    const uint64_t a_rows = key->trans_a ? m : k, a_cols = key->trans_a ? k : m;
    TRY(lt_status(cublasLtMatrixLayoutCreate(&p->b, type, b_rows, b_cols, (int64_t)b_rows), "b"));
    TRY(lt_status(cublasLtMatrixLayoutCreate(&p->a, type, a_rows, a_cols, (int64_t)key->a_stride),
                  "a"));
    return lt_status(cublasLtMatrixLayoutCreate(&p->out, out_type, n, m, (int64_t)key->out_stride),
                     "out");
}

/* Set the limits on proposed algorithms. */
static cublasStatus_t preference_fill(cublasLtMatmulPreference_t preference, const plan_key *key)
{
    const uint64_t workspace = MAX_WORKSPACE_BYTES;
    const uint32_t scheme = CUBLASLT_REDUCTION_SCHEME_NONE;
    const struct {
        cublasLtMatmulPreferenceAttributes_t attribute;
        const void *value;
        size_t bytes;
    } LIMITS[] = {{CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &workspace, sizeof workspace},
                  {CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &scheme, sizeof scheme},
                  {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, &key->b_alignment, 4},
                  {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, &key->a_alignment, 4},
                  {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, &key->out_alignment, 4},
                  {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, &key->out_alignment, 4}};
    for (size_t i = 0; i < sizeof LIMITS / sizeof *LIMITS; i++) {
        cublasStatus_t status = cublasLtMatmulPreferenceSetAttribute(
            preference, LIMITS[i].attribute, LIMITS[i].value, LIMITS[i].bytes);
        if (status != CUBLAS_STATUS_SUCCESS)
            return status;
    }
    return CUBLAS_STATUS_SUCCESS;
}

/* Choose the first of the library's proposals that can be used, if there is one. */
static fsdp_status plan_choose(const struct cuda_matmul *lt, matmul_plan *p)
{
    cublasLtMatmulPreference_t preference;
    cublasLtMatmulHeuristicResult_t proposals[MAX_PROPOSALS] = {0};
    int n = 0;
    TRY(lt_status(cublasLtMatmulPreferenceCreate(&preference), "preference"));
    cublasStatus_t status = preference_fill(preference, &p->key);
    if (status == CUBLAS_STATUS_SUCCESS)
        status = cublasLtMatmulAlgoGetHeuristic(lt->handle, p->product, p->b, p->a, p->out, p->out,
                                                preference, MAX_PROPOSALS, proposals, &n);
    (void)cublasLtMatmulPreferenceDestroy(preference);
    if (status == CUBLAS_STATUS_NOT_SUPPORTED)
        return FSDP_OK;
    for (int i = 0; i < n && !p->has_algorithm; i++) {
        p->has_algorithm = proposals[i].state == CUBLAS_STATUS_SUCCESS;
        p->algorithm = proposals[i].algo;
        p->workspace_bytes = proposals[i].workspaceSize;
    }
    return lt_status(status, "cublasLtMatmulAlgoGetHeuristic");
}

/* plan_of -- the plan for *a, made at the first call of its kind; valid until matmul_close. */
static fsdp_status plan_of(stream *s, const matmul_args *a, matmul_plan **out)
{
    struct cuda_matmul *lt = cuda_own_of(s->device)->matmul;
    const matmul_plan wanted = {.key = key_of(a)};
    matmul_plan **found = tfind(&wanted, &lt->plans, plan_compare);
    if (found != NULL) {
        *out = *found;
        return FSDP_OK;
    }
    matmul_plan *p = malloc(sizeof *p);
    if (p == NULL)
        return fsdp_error(FSDP_ENOMEM, "", "matmul: no memory for a plan");
    *p = wanted;
    fsdp_status status = plan_describe(p);
    IF_OK(status, plan_choose(lt, p));
    if (status == FSDP_OK && tsearch(p, &lt->plans, plan_compare) == NULL)
        status = fsdp_error(FSDP_ENOMEM, "", "matmul: no memory for a plan");
    if (status == FSDP_OK)
        *out = p;
    else
        plan_free(p);
    return status;
}

fsdp_status matmul_open(int index, struct cuda_matmul **out)
{
    struct cudaDeviceProp prop;
    const char *tf32 = getenv("NVIDIA_TF32_OVERRIDE");
    if (tf32 != NULL && tf32[0] != '\0' && strcmp(tf32, "0") != 0)
        return fsdp_error(FSDP_EINVAL, "unset NVIDIA_TF32_OVERRIDE",
                          "NVIDIA_TF32_OVERRIDE: got '%s', expected 0: cuBLAS would round fp32 "
                          "operands to TF32",
                          tf32);
    TRY(cuda_status(cudaGetDeviceProperties(&prop, index), "cudaGetDeviceProperties"));
    struct cuda_matmul *lt = calloc(1, sizeof *lt);
    if (lt == NULL)
        return fsdp_error(FSDP_ENOMEM, "", "matmul: no memory");
    lt->has_bf16 = prop.major >= 8;
    fsdp_status status = lt_status(cublasLtCreate(&lt->handle), "cublasLtCreate");
    if (status == FSDP_OK)
        *out = lt;
    else
        free(lt);
    return status;
}

void matmul_close(struct cuda_matmul *lt)
{
    if (lt == NULL)
        return;
    tdestroy(lt->plans, plan_free);
    (void)cublasLtDestroy(lt->handle);
    free(lt);
}

/* ---- calls ----------------------------------------------------------------------------------- */

typedef struct matmul_call {
    const matmul_args *args;
    const struct cuda_matmul *lt;
    const matmul_plan *plan;
    void *workspace;
    cublasStatus_t *result;
} matmul_call;

static cudaError_t matmul_issue(stream *s, const void *args)
{
    const matmul_call *c = args;
    const matmul_args *a = c->args;
    const matmul_plan *p = c->plan;
    const float one = 1.0f, old = p->key.adds ? 1.0f : 0.0f;
    cublasStatus_t status = CUBLAS_STATUS_SUCCESS;
    if (a->bias)
        status = cublasLtMatmulDescSetAttribute(p->product, CUBLASLT_MATMUL_DESC_BIAS_POINTER,
                                                &a->bias, sizeof a->bias);
    if (status == CUBLAS_STATUS_SUCCESS)
        status = cublasLtMatmul(c->lt->handle, p->product, &one, a->b, p->b, a->a, p->a, &old,
                                a->residual ? a->residual : a->out, p->out, a->out, p->out,
                                &p->algorithm, c->workspace, p->workspace_bytes, accel_queue_of(s));
    *c->result = status;
    return status == CUBLAS_STATUS_SUCCESS ? cudaSuccess : cudaErrorUnknown;
}

/* Compute *a in one call by its plan, which has an algorithm. */
static fsdp_status plan_run(stream *s, const matmul_args *a, const matmul_plan *plan, op_work work)
{
    cublasStatus_t result = CUBLAS_STATUS_SUCCESS;
    matmul_call call = {
        .args = a, .lt = cuda_own_of(s->device)->matmul, .plan = plan, .result = &result};
    if (plan->workspace_bytes > 0)
        TRY(device_alloc(s, MEM_OTHER, plan->workspace_bytes, "matmul workspace", &call.workspace));
    op_writes(&work, call.workspace, plan->workspace_bytes);
    fsdp_status status = cuda_issue(s, matmul_issue, &call, work);
    device_free(s, call.workspace);
    return result == CUBLAS_STATUS_SUCCESS ? status : lt_status(result, "cublasLtMatmul");
}

/* Compute *a in one call. */
static fsdp_status multiply(stream *s, const matmul_args *a, op_work work)
{
    matmul_plan *plan;
    TRY(plan_of(s, a, &plan));
    return plan->has_algorithm ? plan_run(s, a, plan, work) : portable_matmul(s, a);
}

/* Convert the operands of *a to fp32, at wide and wide + b_at, and let *a point to the results. */
static fsdp_status widen(stream *s, matmul_args *a, float *wide, size_t b_at)
{
    const cast_args of_a = {
        .out = wide, .in = a->a, .in_type = DTYPE_BF16, .elems = matmul_a_span(a)};
    const cast_args of_b = {
        .out = wide + b_at, .in = a->b, .in_type = DTYPE_BF16, .elems = a->k * a->n};
    TRY(cuda_cast(s, &of_a));
    TRY(cuda_cast(s, &of_b));
    a->a = of_a.out;
    a->b = of_b.out;
    a->type = DTYPE_F32;
    return FSDP_OK;
}

/* Compute products in fp32, and let a kernel add bias and residual. A GPU before sm_80 can store
 * bf16, but cuBLASLt cannot multiply bf16 there; then the operands are converted to fp32 first
 * (`widens`), which changes no value. */
static fsdp_status multiply_apart(stream *s, const matmul_args *a, bool widens)
{
    enum { ALIGN_ELEMS = MAX_ALIGNMENT / sizeof(float) };
    const bool elsewhere = a->out_type == DTYPE_BF16 || a->residual == a->out;
    const size_t b_at = widens ? size_round_up(matmul_a_span(a), ALIGN_ELEMS) : 0;
    const size_t out_at = widens ? b_at + size_round_up(a->k * a->n, ALIGN_ELEMS) : 0;
    const size_t elems = out_at + (elsewhere ? matmul_out_span(a) : 0);
    float *wide = NULL;
    if (elems > 0)
        TRY(device_alloc_f32(s, MEM_OTHER, elems, "matmul in fp32", &wide));
    matmul_args products = *a;
    products.out_type = DTYPE_F32;
    products.bias = products.residual = NULL;
    if (elsewhere)
        products.out = wide + out_at;
    fsdp_status status = widens ? widen(s, &products, wide, b_at) : FSDP_OK;
    IF_OK(status, multiply(s, &products, matmul_work(&products)));
    if (status == FSDP_OK && (elsewhere || a->bias || a->residual))
        status = cuda_matmul_finish(s, &(matmul_finish_args){*a, products.out});
    device_free(s, wide);
    return status;
}

fsdp_status fast_matmul(stream *s, const matmul_args *a)
{
    matmul_plan *plan;
    const op_work work = matmul_work(a);
    if (work.ends)
        return work.status;
    if (a->k == 0)
        return cuda_matmul_finish(s, &(matmul_finish_args){*a, NULL});
    if (a->type == DTYPE_BF16 && !cuda_own_of(s->device)->matmul->has_bf16)
        return multiply_apart(s, a, true);
    if (a->bias == NULL && a->residual == NULL)
        return multiply(s, a, work);
    const bool rounds_twice = a->out_type == DTYPE_BF16 && a->bias && a->residual;
    if (a->out_type != a->type || rounds_twice)
        return multiply_apart(s, a, false);
    TRY(plan_of(s, a, &plan));
    return plan->has_algorithm ? plan_run(s, a, plan, work) : multiply_apart(s, a, false);
}
