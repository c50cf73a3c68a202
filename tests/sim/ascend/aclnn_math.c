/* aclnn_math.c -- the arithmetic of aclnn's operators for the stand-in: element by element,
 * products and sums. See aclnn_sim.h.
 *
 * A kernel expands its inputs to dense fp32, computes there, and rounds once when it stores. Sums
 * start at the last term, so that nobody comes to rely on the CPU's order. An operator with a
 * workspace fills it with NaN and builds its result there: if somebody else uses the workspace
 * meanwhile, the numbers are wrong. */
#include "tests/sim/ascend/aclnn_sim.h"
#include <math.h>
#include <stdlib.h>
#include "common/base/dtype.h"
#include "common/base/pmath.h"

int64_t sim_elems(const sim_tensor *t)
{
    int64_t n = 1;
    for (int i = 0; i < t->n_dims; i++)
        n *= t->dim[i];
    return n;
}

/* type, C type; the value of an element e, the element with the value x. */
#define TYPES(X)                                                                                   \
    X(ACL_FLOAT, float, e, x)                                                                      \
    X(ACL_BF16, uint16_t, f32_from_bf16(e), bf16_from_f32((float)x))                               \
    X(ACL_INT64, int64_t, e, x)                                                                    \
    X(ACL_INT32, int32_t, e, x)                                                                    \
    X(ACL_UINT8, uint8_t, e, x)                                                                    \
    X(ACL_BOOL, uint8_t, e, x)

size_t sim_type_bytes(aclDataType type)
{
#define BYTES(of_type, c_type, value, stored)                                                      \
    if (type == of_type)                                                                           \
        return sizeof(c_type);
    TYPES(BYTES)
    return 4;
}

/* ---- loads and stores ------------------------------------------------------------------------ */

static double element(const char *at, aclDataType type)
{
#define ELEMENT(of_type, c_type, value, stored)                                                    \
    if (type == of_type) {                                                                         \
        const c_type e = *(const c_type *)(const void *)at;                                        \
        return (double)(value);                                                                    \
    }
    TYPES(ELEMENT)
    return (double)NAN;
}

static void set_element(char *at, aclDataType type, double x)
{
#define SET(of_type, c_type, value, stored)                                                        \
    if (type == of_type)                                                                           \
        *(c_type *)(void *)at = (c_type)(stored);
    TYPES(SET)
}

sim_tensor sim_repeated(const sim_tensor *t, const sim_tensor *shape)
{
    sim_tensor r = *shape;
    r.type = t->type;
    r.data = t->data;
    for (int i = shape->n_dims - 1, k = t->n_dims - 1; i >= 0; i--, k--)
        r.stride[i] = k >= 0 && t->dim[k] == shape->dim[i] ? t->stride[k] : 0;
    return r;
}

/* Offset of the first element of row number `row`. A row is the last dimension. */
static int64_t row_at(const sim_tensor *t, int64_t row)
{
    int64_t at = 0;
    for (int i = t->n_dims - 2; i >= 0; i--) {
        at += row % t->dim[i] * t->stride[i];
        row /= t->dim[i];
    }
    return at;
}

/* Length of the last dimension; a scalar is a row of one. */
static int64_t row_elems(const sim_tensor *t)
{
    return t->n_dims > 0 ? t->dim[t->n_dims - 1] : 1;
}

float *sim_load(const sim_tensor *t)
{
    const int64_t n = sim_elems(t), width = row_elems(t);
    const int64_t step = t->n_dims > 0 ? t->stride[t->n_dims - 1] : 1;
    const int64_t bytes = (int64_t)sim_type_bytes(t->type);
    float *x = malloc((size_t)(n + 1) * sizeof *x);
    for (int64_t row = 0; n > 0 && row < n / width; row++) {
        const char *from = t->data + row_at(t, row) * bytes;
        float *to = x + row * width;
        if (t->type == ACL_FLOAT && step == 1)
            memcpy(to, from, (size_t)width * sizeof *to);
        else if (t->type == ACL_FLOAT)
            for (int64_t i = 0; i < width; i++)
                to[i] = ((const float *)(const void *)from)[i * step];
        else
            for (int64_t i = 0; i < width; i++)
                to[i] = (float)element(from + i * step * bytes, t->type);
    }
    return x;
}

void sim_store(const sim_tensor *t, const float *x)
{
    const int64_t n = sim_elems(t), width = row_elems(t);
    const int64_t step = t->n_dims > 0 ? t->stride[t->n_dims - 1] : 1;
    const int64_t bytes = (int64_t)sim_type_bytes(t->type);
    for (int64_t row = 0; n > 0 && row < n / width; row++) {
        char *to = t->data + row_at(t, row) * bytes;
        const float *from = x + row * width;
        if (t->type == ACL_FLOAT && step == 1)
            memcpy(to, from, (size_t)width * sizeof *from);
        else
            for (int64_t i = 0; i < width; i++)
                set_element(to + i * step * bytes, t->type, (double)from[i]);
    }
}

int64_t sim_index(const sim_tensor *t, int64_t i)
{
    return (int64_t)element(t->data + i * t->stride[0] * (int64_t)sim_type_bytes(t->type), t->type);
}

float *sim_result(const sim_op *o, int64_t elems)
{
    float *r = o->workspace;
    if (r == NULL)
        r = malloc((size_t)(elems + 1) * sizeof *r);
    memset(r, 0xFF, (size_t)elems * sizeof *r); /* NaN */
    return r;
}

float *sim_zeros(const sim_op *o, int64_t elems)
{
    float *r = sim_result(o, elems);
    memset(r, 0, (size_t)elems * sizeof *r);
    return r;
}

void sim_deliver(const sim_op *o, const sim_tensor *out, float *result)
{
    sim_store(out, result);
    if (result != o->workspace)
        free(result);
}

int64_t sim_first(const sim_op *o, int64_t n)
{
    static _Atomic int64_t n_calls;
    return o->fixed_order || n == 0 ? 0 : ++n_calls % n;
}

/* ---- element by element ---------------------------------------------------------------------- */

/* Integers are added as integers, so sums are exact. */
static fsdp_status add_integers(const sim_op *o)
{
    const sim_tensor *out = &o->t[2];
    const sim_tensor a = sim_repeated(&o->t[0], out), b = sim_repeated(&o->t[1], out);
    const int64_t n = sim_elems(out), width = row_elems(out);
    for (int64_t i = 0; i < n; i++) {
        const int64_t row = i / width, col = i % width;
        const int64_t *x = (int64_t *)(void *)a.data + row_at(&a, row);
        const int64_t *y = (int64_t *)(void *)b.data + row_at(&b, row);
        int64_t *z = (int64_t *)(void *)out->data + row_at(out, row);
        z[col * out->stride[out->n_dims - 1]] =
            (int64_t)((uint64_t)x[col * a.stride[out->n_dims - 1]] +
                      (uint64_t)o->number[0] * (uint64_t)y[col * b.stride[out->n_dims - 1]]);
    }
    return FSDP_OK;
}

/* The argument u of tanh in GELU; tanh(u) = 2 / (1 + exp(-2 u)) - 1. */
static float gelu_inner(float x)
{
    return 0.7978845608f * (x + 0.044715f * x * x * x);
}

static float gelu_slope(float x)
{
    const float half = 1.0f / (1.0f + pm_expf(-2.0f * gelu_inner(x))); /* (1 + tanh) / 2 */
    return half + x * 2.0f * half * (1.0f - half) * 0.7978845608f * (1.0f + 0.134145f * x * x);
}

static float silu_slope(float x)
{
    const float s = 1.0f / (1.0f + pm_expf(-x));
    return s + x * s * (1.0f - s);
}

/* x and y are elements of the operands; y is 0 if there is only one operand. */
static float value_of(const sim_op *o, float x, float y)
{
    const float number = (float)o->number[0], factor = (float)o->number[1];
#define VALUE(name, value)                                                                         \
    case name:                                                                                     \
        return value;
    switch (o->function) {
        SIM_FUNCTIONS(VALUE)
    }
    return NAN;
}

fsdp_status sim_each(const sim_op *o)
{
    const bool is_pair = o->n_tensors == 3;
    const sim_tensor *out = &o->t[o->n_tensors - 1];
    const sim_tensor a = sim_repeated(&o->t[0], out), b = sim_repeated(&o->t[1], out);
    const int64_t n = sim_elems(out);
    if (out->type == ACL_INT64 && o->function == SIM_ADD)
        return add_integers(o);
    float *x = sim_load(&a), *y = is_pair ? sim_load(&b) : NULL;
    for (int64_t i = 0; i < n; i++)
        x[i] = value_of(o, x[i], is_pair ? y[i] : 0);
    sim_store(out, x);
    free(x), free(y);
    return FSDP_OK;
}

/* Same type: copy the bits. Between integers: convert directly, because fp32 has fewer bits. */
fsdp_status sim_cast(const sim_op *o)
{
    const sim_tensor *out = &o->t[1], in = sim_repeated(&o->t[0], out);
    if (in.type != out->type && (in.type == ACL_FLOAT || in.type == ACL_BF16)) {
        float *x = sim_load(&in);
        sim_store(out, x);
        free(x);
        return FSDP_OK;
    }
    const int64_t width = row_elems(out), rows = width > 0 ? sim_elems(out) / width : 0;
    const int64_t in_bytes = (int64_t)sim_type_bytes(in.type);
    const int64_t out_bytes = (int64_t)sim_type_bytes(out->type);
    const int64_t in_step = in.stride[out->n_dims - 1] * in_bytes;
    const int64_t out_step = out->stride[out->n_dims - 1] * out_bytes;
    for (int64_t r = 0; r < rows; r++) {
        const char *from = in.data + row_at(&in, r) * in_bytes;
        char *to = out->data + row_at(out, r) * out_bytes;
        if (in.type == out->type && in_step == in_bytes && out_step == out_bytes) {
            memcpy(to, from, (size_t)(width * in_bytes));
            continue;
        }
        for (int64_t i = 0; i < width; i++, from += in_step, to += out_step)
            if (in.type == out->type)
                memcpy(to, from, (size_t)in_bytes);
            else
                set_element(to, out->type, element(from, in.type));
    }
    return FSDP_OK;
}

fsdp_status sim_triu(const sim_op *o)
{
    const sim_tensor *t = &o->t[0];
    const int64_t rows = t->dim[0], cols = t->dim[1];
    float *x = sim_load(t);
    for (int64_t i = 0; i < rows; i++)
        for (int64_t j = 0; j < cols && j < i + o->integer[0]; j++)
            x[i * cols + j] = 0.0f;
    sim_store(t, x);
    free(x);
    return FSDP_OK;
}

/* out = x cos + turned(x) sin, where turned takes the other element of a pair and negates the
 * second. */
fsdp_status sim_rotary(const sim_op *o)
{
    const sim_tensor *t = o->t, c = sim_repeated(&t[1], t), s = sim_repeated(&t[2], t);
    const int64_t n = sim_elems(t), D = t->dim[t->n_dims - 1];
    const int64_t apart = o->integer[0] == 1 ? 1 : D / 2;
    float *x = sim_load(t), *cosine = sim_load(&c), *sine = sim_load(&s), *out = sim_result(o, n);
    for (int64_t i = 0; i < n; i++) {
        const bool is_first = i % D / apart % 2 == 0;
        out[i] = x[i] * cosine[i] + (is_first ? -x[i + apart] : x[i - apart]) * sine[i];
    }
    free(x), free(cosine), free(sine);
    sim_deliver(o, &t[3], out);
    return FSDP_OK;
}

/* ---- products -------------------------------------------------------------------------------- */

/* HF32 keeps 11 of the 23 bits of a fraction. Clear the low `bits` bits. */
static void cut_bits(float *x, int64_t n, int64_t bits)
{
    for (int64_t i = 0; i < n && bits > 0; i++) {
        uint32_t u;
        memcpy(&u, &x[i], sizeof u);
        u &= ~0u << bits;
        memcpy(&x[i], &u, sizeof u);
    }
}

enum { ROWS = 4 };

/* r[ROWS][n] += a[ROWS][k] b[k][n], from the last k to the first. */
static void multiply_rows(float *r, const float *a, const float *b, int64_t n, int64_t k)
{
    for (int64_t l = k - 1; l >= 0; l--) {
        const float a0 = a[l], a1 = a[k + l], a2 = a[2 * k + l], a3 = a[3 * k + l];
        const float *row = b + l * n;
        for (int64_t j = 0; j < n; j++) {
            r[j] += a0 * row[j];
            r[n + j] += a1 * row[j];
            r[2 * n + j] += a2 * row[j];
            r[3 * n + j] += a3 * row[j];
        }
    }
}

static void multiply_row(float *r, const float *a, const float *b, int64_t n, int64_t k)
{
    for (int64_t l = k - 1; l >= 0; l--)
        for (int64_t j = 0; j < n; j++)
            r[j] += a[l] * b[l * n + j];
}

fsdp_status sim_mm(const sim_op *o)
{
    const sim_tensor *out = &o->t[2], *old = &o->t[3];
    const int64_t m = out->dim[0], n = out->dim[1], k = o->t[0].dim[1];
    float *a = sim_load(&o->t[0]), *b = sim_load(&o->t[1]), *r = sim_zeros(o, m * n);
    const float alpha = (float)o->number[0], beta = (float)o->number[1];
    int64_t i = 0;
    cut_bits(a, m * k, o->integer[0]);
    cut_bits(b, k * n, o->integer[0]);
    for (; i + ROWS <= m; i += ROWS)
        multiply_rows(r + i * n, a + i * k, b, n, k);
    for (; i < m; i++)
        multiply_row(r + i * n, a + i * k, b, n, k);
    free(a), free(b);
    if (old->type != ACL_DT_UNDEFINED) {
        const sim_tensor repeated = sim_repeated(old, out);
        float *before = sim_load(&repeated);
        for (int64_t e = 0; e < m * n; e++)
            r[e] = beta * before[e] + alpha * r[e];
        free(before);
    }
    sim_deliver(o, out, r);
    return FSDP_OK;
}

/* ---- sums ------------------------------------------------------------------------------------ */

fsdp_status sim_reduce_sum(const sim_op *o)
{
    const sim_tensor *in = &o->t[0], *out = &o->t[1];
    const int64_t n_out = sim_elems(out);
    float *x = sim_load(in), *r = sim_zeros(o, n_out);
    for (int64_t k = in->dim[0] - 1; k >= 0; k--)
        for (int64_t e = 0; e < n_out; e++)
            r[e] += x[k * n_out + e];
    free(x);
    sim_deliver(o, out, r);
    return FSDP_OK;
}
