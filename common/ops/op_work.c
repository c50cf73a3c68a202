/* op_work.c -- see op_work.h. The formulas are in op_list.h; here is what their words mean. */
#include "common/ops/op_work.h"
#include "common/ops/ranges.h"

/* ---- a call's name, cost and accesses -------------------------------------------------------- */

/* FSDP_EINVAL unless the operation's arrays may be stored as t. */
static fsdp_status check_type(const char *op, dtype t)
{
    if (t == DTYPE_F32 || t == DTYPE_BF16)
        return FSDP_OK;
    return fsdp_error(FSDP_EINVAL, "pass DTYPE_F32 or DTYPE_BF16",
                      "%s: elements stored as %s, expected f32 or bf16", op, dtype_name(t));
}

/* type: how the caller's arrays are stored; elems: the number of elements to compute. */
static op_work begin(const char *name, dtype type, size_t elems, double flops)
{
    const fsdp_status status = check_type(name, type);
    return (op_work){.ends = elems == 0 || status != FSDP_OK,
                     .status = status,
                     .info = {.key = {.name = name}, .cost = {.flops = flops}}};
}

/* Record the status of a further check of the arguments. */
static void add_check(op_work *w, fsdp_status status)
{
    w->status = status;
    w->ends = w->ends || status != FSDP_OK;
}

static void add_products(op_work *w, double flops, dtype type)
{
    w->info.cost.flops += flops;
    w->info.cost.bf16_flops += type == DTYPE_BF16 ? flops : 0;
}

static void add_access(op_work *w, const void *ptr, size_t bytes, bool writes)
{
    if (ptr == NULL || bytes == 0)
        return;
    FSDP_ASSERT(w->n_accesses < OP_MAX_ACCESSES);
    w->accesses[w->n_accesses++] = (mem_access){ptr, bytes, writes};
}

void op_reads(op_work *w, const void *ptr, size_t bytes)
{
    add_access(w, ptr, bytes, false);
}

void op_writes(op_work *w, const void *ptr, size_t bytes)
{
    add_access(w, ptr, bytes, true);
}

/* The bytes of `elems` elements, to add to the cost. The bytes of a layer's arrays stay far below
 * 2^53, so their sums in double are exact. */
static double bytes_of(size_t elems, dtype t)
{
    return (double)elems * (double)dtype_bytes(t);
}

/* The elements from the first to the last of `rows` rows that begin `stride` elements apart. */
static size_t span_of(size_t rows, size_t stride, size_t width)
{
    FSDP_ASSERT(rows < 2 || stride >= width);
    return rows == 0 || width == 0 ? 0 : (rows - 1) * stride + width;
}

/* ---- checks and sizes of single operations --------------------------------------------------- */

/* NN, NT, TN, TT: which of a and b is stored transposed; + when it accumulates. */
static const char *matmul_form(const matmul_args *a)
{
    static const char *const FORMS[2][8] = {{"NN", "NN+", "NT", "NT+", "TN", "TN+", "TT", "TT+"},
                                            {"NN bf16", "NN+ bf16", "NT bf16", "NT+ bf16",
                                             "TN bf16", "TN+ bf16", "TT bf16", "TT+ bf16"}};
    return FORMS[a->type == DTYPE_BF16]
                [(a->trans_a ? 4 : 0) + (a->trans_b ? 2 : 0) + (a->accumulate ? 1 : 0)];
}

size_t matmul_a_stride(const matmul_args *a)
{
    return row_stride(a->a_stride, a->trans_a ? a->m : a->k);
}

size_t matmul_a_span(const matmul_args *a)
{
    const size_t rows = a->trans_a ? a->k : a->m, cols = a->trans_a ? a->m : a->k;
    return span_of(rows, matmul_a_stride(a), cols);
}

size_t matmul_out_span(const matmul_args *a)
{
    return span_of(a->m, row_stride(a->out_stride, a->n), a->n);
}

/* Whether a matmul takes these types, bias and residual. */
static fsdp_status check_matmul(const matmul_args *a)
{
    if (a->out_type != a->type && a->out_type != DTYPE_F32)
        return fsdp_error(FSDP_EINVAL, "store what a matmul makes as its operands, or in fp32",
                          "matmul: out as %s, expected f32 or %s", dtype_name(a->out_type),
                          dtype_name(a->type));
    if (a->accumulate && (a->out_type != DTYPE_F32 || a->bias || a->residual))
        return fsdp_error(FSDP_EINVAL, "accumulate in fp32; add bias and residual by another call",
                          "matmul: accumulates in %s %s bias or residual, expected f32 without",
                          dtype_name(a->out_type), a->bias || a->residual ? "with" : "without");
    return FSDP_OK;
}

/* How d_k and d_v are stored. */
static dtype kv_type(const attention_backward_args *a)
{
    return a->wide_kv ? DTYPE_F32 : a->shape.type;
}

/* Elements of a batch of input images. */
static size_t conv_in_elems(const conv_shape *x)
{
    return x->batch * x->in_channels * x->height * x->width;
}

static size_t conv_out_elems(const conv_shape *x)
{
    return x->batch * x->out_channels * (x->height + 1 - x->kernel) * (x->width + 1 - x->kernel);
}

/* Products that are summed for an element of the output. */
static size_t conv_fan_in(const conv_shape *x)
{
    return x->in_channels * x->kernel * x->kernel;
}

static size_t conv_weight_elems(const conv_shape *x)
{
    return x->out_channels * conv_fan_in(x);
}

static fsdp_status check_conv(const char *op, const conv_shape *x)
{
    if (x->kernel == 0 || x->kernel > x->height || x->kernel > x->width)
        return fsdp_error(FSDP_EINVAL, "use a kernel that fits into the image",
                          "%s: a kernel of %zu x %zu, expected 1 to %zu rows and columns, "
                          "for images of %zu x %zu",
                          op, x->kernel, x->kernel, x->height < x->width ? x->height : x->width,
                          x->height, x->width);
    if (x->in_channels == 0 || x->out_channels == 0)
        return fsdp_error(FSDP_EINVAL, "use at least one channel on both sides",
                          "%s: %zu channels to %zu, expected 1 or more", op, x->in_channels,
                          x->out_channels);
    return FSDP_OK;
}

static fsdp_status check_dropout(const dropout_args *a)
{
    if (a->p >= 0.0f && a->p < 1.0f)
        return FSDP_OK;
    return fsdp_error(FSDP_EINVAL, "drop with a probability from 0 to below 1",
                      "dropout: p is %g, expected 0 <= p < 1", (double)a->p);
}

/* n_head must be a multiple of n_kv_head. Without rows, a shape may have zeros. */
static fsdp_status check_heads(const char *op, const attention_shape *x, size_t rows)
{
    if (rows == 0)
        return FSDP_OK;
    if (x->head_dim == 0 || x->v_head_dim == 0)
        return fsdp_error(FSDP_EINVAL, "set both widths, v_head_dim too where they are equal",
                          "%s: heads of q and k are %zu wide and heads of v %zu, expected "
                          "at least 1",
                          op, x->head_dim, x->v_head_dim);
    FSDP_ASSERT(x->n_kv_head > 0 && x->n_head % x->n_kv_head == 0);
    return FSDP_OK;
}

/* ---- the words of op_list.h ------------------------------------------------------------------ */

/* clang-format off */
#define TOUCHES(array, elems, span, stored, write)                                                 \
    w.info.cost.bytes += bytes_of(elems, stored);                                                  \
    add_access(&w, a->array, (span) * dtype_bytes(stored), write);
#define READS_PART(array, elems, span, stored)  TOUCHES(array, elems, span, stored, false)
#define WRITES_PART(array, elems, span, stored) TOUCHES(array, elems, span, stored, true)
#define READS(array, elems, stored)             TOUCHES(array, elems, elems, stored, false)
#define WRITES(array, elems, stored)            TOUCHES(array, elems, elems, stored, true)
#define DELIVERS(array, elems, stored, adds)                                                       \
    TOUCHES(array, (elems) * ((adds) ? 2 : 1), elems, stored, true)
#define READS_TOKENS(array, elems)              READS(array, elems, DTYPE_F32) /* as large */
#define READS_ONE(array)                        op_reads(&w, a->array, sizeof *a->array);
#define WRITES_ONE(array)                       op_writes(&w, a->array, sizeof *a->array);

#define HEADS(array, stride, width, stored, write)                                                 \
    TOUCHES(array, a->shape.batch * a->shape.seq_len * (width),                                    \
            span_of(a->shape.batch * a->shape.seq_len, a->shape.stride, width), stored, write)
#define READS_HEADS(array, stride, heads, width)                                                   \
    HEADS(array, stride, a->shape.heads * a->shape.width, type, false)
#define WRITES_HEADS(array, stride, heads, width, stored)                                          \
    HEADS(array, stride, a->shape.heads * a->shape.width, stored, true)

#define IF(array, x)                            (a->array != NULL ? (x) : 0)
#define PRODUCTS(x)                             add_products(&w, (double)(x), type);
#define NAMED(form, m, n, k)                    w.info.key = (work_key){name, form, m, n, k};
#define COMPUTES(x)                             w.ends = (x) == 0 || w.status != FSDP_OK;
#define CHECK(x)                                add_check(&w, w.status != FSDP_OK ? w.status : (x));
#define REQUIRES(x)                             FSDP_ASSERT(w.ends || (x));

#define OP(op, cpu, cuda, npu, stored, elems, flops, touches)                                      \
    static double op##_flops(const op##_args *a, double n)                                         \
    {                                                                                              \
        (void)a, (void)n;                                                                          \
        return flops;                                                                              \
    }                                                                                              \
    op_work op##_work(const op##_args *a)                                                          \
    {                                                                                              \
        const char *const name = #op;                                                              \
        const dtype type = stored;                                                                 \
        const size_t n = elems;                                                                    \
        op_work w = begin(name, type, n, op##_flops(a, (double)n));                                \
        touches                                                                                    \
        return w;                                                                                  \
    }
/* clang-format on */
#include "common/ops/op_list.h"
