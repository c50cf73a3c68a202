/* lt_one.c -- the speed of cuBLASLt's first proposal, which common/cuda/matmul.c takes, beside the
 * best of eight, for products of GPT-2 124M.
 *
 *   lt_one [DIVISOR]     prints a Markdown table; exit status 1 if a call fails. Sizes are divided
 *                        by DIVISOR, for a dry run
 *
 * Operands are bf16, sums fp32. The limits on proposals are matmul.c's. After WARM_UP calls, each
 * proposal runs in ROUNDS rounds of CALLS calls; its time is the mean of its best round.
 *
 * As in matmul.c, our row-major out = op(a) op(b) is cuBLASLt's out^T = op(b)^T op(a)^T. Rows of
 * logits are 50257 elements apart, so that most of them are aligned to 2 bytes only, or padded to
 * 50304 elements, 128 bytes times 786. */
#include <cublasLt.h>
#include <cuda_runtime_api.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

enum { T = 4096, C = 768, QKV = 3 * C, MLP = 4 * C, VOCAB = 50257, PADDED = 50304 };
enum { MAX_PROPOSALS = 8, ROUNDS = 2, WARM_UP = 3, CALLS = 20 };
enum { ALIGNMENT = 64, WORKSPACE_BYTES = 32 << 20, PATTERN_BYTES = 1 << 20 };

/* out [m,n] = op(a) op(b), with sums of k products. */
typedef struct product {
    const char *name;
    uint64_t m, n, k;
    bool trans_a, trans_b; /* a is stored [k,m], b [n,k] */
    bool bias;             /* cuBLASLt adds a bias */
    bool wide;             /* out is fp32: a gradient of weights, or a kernel adds the bias */
    uint64_t stride;       /* of the rows of logits, in elements */
} product;

static const product PRODUCTS[] = {
    {"qkv", T, QKV, C, .bias = true},
    {"attention's out", T, C, C, .wide = true},
    {"mlp in", T, MLP, C, .bias = true},
    {"mlp out", T, C, MLP, .wide = true},
    {"d_x of qkv", T, C, QKV, .trans_b = true},
    {"d_x of mlp in", T, C, MLP, .trans_b = true},
    {"d_w of attention's out", C, C, T, .trans_a = true, .wide = true},
    {"d_w of mlp in", C, MLP, T, .trans_a = true, .wide = true},
    {"head", T, VOCAB, C, .trans_b = true, .stride = VOCAB},
    {"head", T, VOCAB, C, .trans_b = true, .stride = PADDED},
    {"d_x of head", T, C, VOCAB, .stride = VOCAB},
    {"d_x of head", T, C, VOCAB, .stride = PADDED},
    {"d_w of head", VOCAB, C, T, .trans_a = true, .wide = true, .stride = VOCAB},
    {"d_w of head", VOCAB, C, T, .trans_a = true, .wide = true, .stride = PADDED},
};

/* A matrix as it is stored, on the GPU. */
typedef struct matrix {
    cublasLtMatrixLayout_t layout;
    void *ptr;
} matrix;

typedef struct lt {
    cublasLtHandle_t handle;
    cudaStream_t stream;
    cudaEvent_t begin, end;
    cublasLtMatmulPreference_t limits;
    void *workspace;
    uint64_t divisor;
    cublasLtMatmulDesc_t product;
    matrix a, b, out, bias;
} lt;

static void need_cuda(cudaError_t error, const char *what)
{
    if (error == cudaSuccess)
        return;
    printf("FAILED: %s: %s\n", what, cudaGetErrorString(error));
    exit(1);
}

static void need_lt(cublasStatus_t status, const char *what)
{
    if (status == CUBLAS_STATUS_SUCCESS)
        return;
    printf("FAILED: %s: %s\n", what, cublasLtGetStatusString(status));
    exit(1);
}

/* ---- set-up ---------------------------------------------------------------------------------- */

static void limit(lt *x, cublasLtMatmulPreferenceAttributes_t attribute, const void *value,
                  size_t bytes)
{
    need_lt(cublasLtMatmulPreferenceSetAttribute(x->limits, attribute, value, bytes), "limit");
}

static void lt_open(lt *x)
{
    const uint64_t workspace = WORKSPACE_BYTES;
    const uint32_t scheme = CUBLASLT_REDUCTION_SCHEME_NONE, alignment = ALIGNMENT;
    need_cuda(cudaSetDevice(0), "cudaSetDevice");
    need_cuda(cudaStreamCreateWithPriority(&x->stream, cudaStreamNonBlocking, 0), "stream");
    need_cuda(cudaEventCreateWithFlags(&x->begin, cudaEventDefault), "event");
    need_cuda(cudaEventCreateWithFlags(&x->end, cudaEventDefault), "event");
    need_cuda(cudaMallocAsync(&x->workspace, WORKSPACE_BYTES, x->stream), "workspace");
    need_lt(cublasLtCreate(&x->handle), "cublasLtCreate");
    need_lt(cublasLtMatmulPreferenceCreate(&x->limits), "limits");
    limit(x, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &workspace, sizeof workspace);
    limit(x, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &scheme, sizeof scheme);
    limit(x, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, &alignment, sizeof alignment);
    limit(x, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, &alignment, sizeof alignment);
    limit(x, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, &alignment, sizeof alignment);
    limit(x, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, &alignment, sizeof alignment);
}

static void lt_close(lt *x)
{
    need_lt(cublasLtMatmulPreferenceDestroy(x->limits), "end");
    need_lt(cublasLtDestroy(x->handle), "end");
    need_cuda(cudaFreeAsync(x->workspace, x->stream), "end");
    need_cuda(cudaEventRecord(x->end, x->stream), "end");
    need_cuda(cudaEventSynchronize(x->end), "end");
    need_cuda(cudaEventDestroy(x->begin), "end");
    need_cuda(cudaEventDestroy(x->end), "end");
    need_cuda(cudaStreamDestroy(x->stream), "end");
}

/* Fill with numbers of bf16 from -1 to 1. A GPU draws less power, and may run faster, on zeros. */
static void fill(lt *x, char *ptr, size_t bytes)
{
    static uint16_t pattern[PATTERN_BYTES / 2];
    uint32_t random = 1;
    for (size_t i = 0; i < PATTERN_BYTES / 2; i++) {
        random = random * 1664525u + 1013904223u;
        pattern[i] = (uint16_t)(0x3c00u + (random >> 16 & 0x8000u) + (random >> 20) % 0x380u);
    }
    size_t done = bytes < PATTERN_BYTES ? bytes : PATTERN_BYTES;
    need_cuda(cudaMemcpyAsync(ptr, pattern, done, cudaMemcpyHostToDevice, x->stream), "fill");
    while (done < bytes) {
        const size_t more = bytes - done < done ? bytes - done : done;
        need_cuda(cudaMemcpyAsync(ptr + done, ptr, more, cudaMemcpyDeviceToDevice, x->stream),
                  "fill");
        done += more;
    }
}

/* A matrix of numbers, row-major [rows,cols]. Rows of logits are p->stride apart. */
static matrix matrix_new(lt *x, const product *p, uint64_t rows, uint64_t cols, bool wide)
{
    matrix made = {.layout = NULL};
    const bool logits = p->stride > 0 && cols == VOCAB / x->divisor;
    const uint64_t stride = logits ? p->stride / x->divisor : cols;
    const size_t bytes = rows * stride * (wide ? 4 : 2);
    need_lt(cublasLtMatrixLayoutCreate(&made.layout, wide ? CUDA_R_32F : CUDA_R_16BF, cols, rows,
                                       (int64_t)stride),
            "layout");
    need_cuda(cudaMallocAsync(&made.ptr, bytes, x->stream), "memory");
    fill(x, made.ptr, bytes);
    return made;
}

static void matrix_free(lt *x, matrix *m)
{
    need_lt(cublasLtMatrixLayoutDestroy(m->layout), "layout");
    need_cuda(cudaFreeAsync(m->ptr, x->stream), "memory");
}

static void describe(lt *x, cublasLtMatmulDescAttributes_t attribute, const void *value,
                     size_t bytes)
{
    need_lt(cublasLtMatmulDescSetAttribute(x->product, attribute, value, bytes), "description");
}

static void product_open(lt *x, const product *p)
{
    const cublasOperation_t as_it_is = CUBLAS_OP_N, transposed = CUBLAS_OP_T;
    const cublasLtEpilogue_t epilogue = CUBLASLT_EPILOGUE_BIAS;
    const cudaDataType_t type = CUDA_R_16BF;
    x->a = matrix_new(x, p, p->trans_a ? p->k : p->m, p->trans_a ? p->m : p->k, false);
    x->b = matrix_new(x, p, p->trans_b ? p->n : p->k, p->trans_b ? p->k : p->n, false);
    x->out = matrix_new(x, p, p->m, p->n, p->wide);
    x->bias = matrix_new(x, p, 1, p->n, false);
    need_lt(cublasLtMatmulDescCreate(&x->product, CUBLAS_COMPUTE_32F, CUDA_R_32F), "description");
    describe(x, CUBLASLT_MATMUL_DESC_TRANSA, p->trans_b ? &transposed : &as_it_is,
             sizeof transposed);
    describe(x, CUBLASLT_MATMUL_DESC_TRANSB, p->trans_a ? &transposed : &as_it_is,
             sizeof transposed);
    if (!p->bias)
        return;
    describe(x, CUBLASLT_MATMUL_DESC_EPILOGUE, &epilogue, sizeof epilogue);
    describe(x, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, &type, sizeof type);
    describe(x, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &x->bias.ptr, sizeof x->bias.ptr);
}

static void product_close(lt *x)
{
    need_lt(cublasLtMatmulDescDestroy(x->product), "description");
    matrix_free(x, &x->a);
    matrix_free(x, &x->b);
    matrix_free(x, &x->out);
    matrix_free(x, &x->bias);
}

/* ---- measuring ------------------------------------------------------------------------------- */

/* Mean microseconds of a call. */
static double time_calls(lt *x, const cublasLtMatmulHeuristicResult_t *proposal, int n_calls)
{
    const float one = 1, zero = 0;
    float ms = 0;
    need_cuda(cudaEventRecord(x->begin, x->stream), "event");
    for (int i = 0; i < n_calls; i++)
        need_lt(cublasLtMatmul(x->handle, x->product, &one, x->b.ptr, x->b.layout, x->a.ptr,
                               x->a.layout, &zero, x->out.ptr, x->out.layout, x->out.ptr,
                               x->out.layout, &proposal->algo, x->workspace,
                               proposal->workspaceSize, x->stream),
                "cublasLtMatmul");
    need_cuda(cudaEventRecord(x->end, x->stream), "event");
    need_cuda(cudaEventSynchronize(x->end), "cublasLtMatmul");
    need_cuda(cudaEventElapsedTime(&ms, x->begin, x->end), "time");
    return (double)ms * 1e3 / n_calls;
}

/* Print a row of the table. */
static void measure(lt *x, const product *p)
{
    cublasLtMatmulHeuristicResult_t proposals[MAX_PROPOSALS] = {0};
    double us[MAX_PROPOSALS];
    int n_found = 0, n = 0, best = 0;
    const cublasStatus_t status = cublasLtMatmulAlgoGetHeuristic(
        x->handle, x->product, x->b.layout, x->a.layout, x->out.layout, x->out.layout, x->limits,
        MAX_PROPOSALS, proposals, &n_found);
    if (status != CUBLAS_STATUS_NOT_SUPPORTED && status != CUBLAS_STATUS_ARCH_MISMATCH)
        need_lt(status, "cublasLtMatmulAlgoGetHeuristic");
    for (int i = 0; i < n_found; i++)
        if (proposals[i].state == CUBLAS_STATUS_SUCCESS)
            proposals[n++] = proposals[i];
    for (int i = 0; i < ROUNDS * n; i++) {
        (void)time_calls(x, &proposals[i % n], WARM_UP);
        const double now = time_calls(x, &proposals[i % n], CALLS);
        if (i < n || now < us[i % n])
            us[i % n] = now;
    }
    for (int i = 1; i < n; i++)
        best = us[i] < us[best] ? i : best;
    const double mflop = 2e-6 * (double)p->m * (double)p->n * (double)p->k;
    printf("| %s, %llu x %llu x %llu |", p->name, (unsigned long long)p->m,
           (unsigned long long)p->n, (unsigned long long)p->k);
    if (p->stride > 0)
        printf(" %llu", (unsigned long long)(p->stride / x->divisor));
    if (n > 0)
        printf(" | %.1f | %.1f | %.1f | %.1f | %d of %d |\n", us[0], mflop / us[0], us[best],
               mflop / us[best], best + 1, n);
    else
        printf(" | no algorithm | | | | |\n");
}

int main(int argc, char **argv)
{
    lt x = {.divisor = argc > 1 ? strtoull(argv[1], NULL, 10) : 1};
    if (x.divisor < 1 || x.divisor > 64) {
        printf("FAILED: got '%s', expected a divisor from 1 to 64\n", argv[1]);
        return 1;
    }
    lt_open(&x);
    printf("| product, m x n x k | stride of logits | first: us | TFLOP/s | best: us | TFLOP/s | "
           "number |\n|---|---:|---:|---:|---:|---:|---:|\n");
    for (size_t i = 0; i < sizeof PRODUCTS / sizeof *PRODUCTS; i++) {
        product p = PRODUCTS[i];
        p.m /= x.divisor;
        p.n /= x.divisor;
        p.k /= x.divisor;
        product_open(&x, &p);
        measure(&x, &p);
        product_close(&x);
    }
    lt_close(&x);
    return 0;
}
