/* test_tensor_parallel.c -- matrices in blocks: the order in which they are stored, which rank has
 * which of them, and their products against sums in double. tests/cli/mesh.sh compares the bits of
 * meshes. */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "common/base/philox.h"
#include "common/model/family.h"
#include "common/model/tensor_parallel.h"
#include "common/model/transformer.h"
#include "tests/unit/ops_check_lib.h"
#include "tests/unit/unit_lib.h"

enum { HEADS = 4, C = 24, F = 40, V = 14, T = 8, B = 2, ROWS = B * T };

static model_config config_of(const char *family, size_t blocks)
{
    model_config c = {.n_blocks = 1,
                      .n_head = HEADS,
                      .d_model = C,
                      .d_ff = F,
                      .vocab_size = V,
                      .max_seq_len = 8,
                      .tp_blocks = blocks};
    snprintf(c.family, sizeof c.family, "%s", family);
    return c;
}

static const param_spec *find(const model *m, const char *end)
{
    for (int p = 0; p < m->n_params; p++)
        if (strstr(m->params[p].name, end))
            return &m->params[p];
    fail_msg("no parameter %s", end);
    return NULL;
}

/* ---- order ----------------------------------------------------------------------------------- */

TEST(test_order_is_a_permutation)
{
    static const char *const FAMILIES[] = {"gpt2", "llama"};
    for (int i = 0; i < 2; i++)
        for (size_t blocks = 1; blocks <= HEADS; blocks *= 2) {
            const model_config c = config_of(FAMILIES[i], blocks);
            model m;
            OK(model_create(&c, &m));
            for (int p = 0; p < m.n_params; p++) {
                const param_spec *spec = &m.params[p];
                bool *seen = calloc(spec->cut.elems, sizeof *seen);
                for (size_t e = 0, run, back; e < spec->cut.elems; e++) {
                    const size_t at = param_in_file(spec, e, &run);
                    assert_true(at < spec->cut.elems && !seen[at] && run > 0);
                    seen[at] = true;
                    assert_int_equal(param_from_file(spec, blocks, at, &back), e);
                    if (run > 1 && e + 1 < spec->cut.elems)
                        assert_int_equal(param_in_file(spec, e + 1, &back), at + 1);
                }
                free(seen);
            }
            model_free(&m);
        }
}

/* Block g of c_attn is q_g | k_g | v_g in each row; of o_proj, some columns. */
TEST(test_order_of_blocks)
{
    enum { G = 2, WIDTH = C / G };
    size_t run;
    model m;
    model_config c = config_of("gpt2", G);
    OK(model_create(&c, &m));
    const param_spec *weight = find(&m, "c_attn.weight"), *bias = find(&m, "c_attn.bias");
    for (size_t g = 0; g < G; g++)
        for (size_t row = 0; row < C; row++)
            for (size_t part = 0; part < 3; part++) {
                const size_t in_row = part * C + g * WIDTH;
                const size_t at = ((g * C + row) * 3 + part) * WIDTH;
                assert_int_equal(param_in_file(weight, at, &run), row * 3 * C + in_row);
                assert_int_equal(run, WIDTH);
                assert_int_equal(param_in_file(bias, (g * 3 + part) * WIDTH, &run), in_row);
            }
    model_free(&m);
    c = config_of("llama", G);
    OK(model_create(&c, &m));
    weight = find(&m, "o_proj.weight");
    for (size_t g = 0; g < G; g++)
        for (size_t row = 0; row < C; row++)
            assert_int_equal(param_in_file(weight, (g * C + row) * WIDTH, &run),
                             row * C + g * WIDTH);
    model_free(&m);
}

/* ---- shares ---------------------------------------------------------------------------------- */

TEST(test_shares)
{
    for (int size = 1; size <= HEADS; size *= 2) {
        const model_config c = config_of("gpt2", HEADS);
        model whole, m;
        OK(model_create(&c, &whole));
        size_t next[64] = {0};
        for (int rank = 0; rank < size; rank++) {
            OK(model_copy(&whole, &m));
            OK(model_share(&m, rank, size, false));
            for (int p = 0; p < m.n_params; p++) {
                const param_spec *spec = &m.params[p];
                size_t elems = 1;
                for (int d = 0; d < spec->n_dims; d++)
                    elems *= spec->dims[d];
                assert_int_equal(elems, spec->elems);
                assert_true(spec->elems <= param_share_elems(spec, size));
                assert_int_equal(spec->cut.elsewhere, spec->cut.blocks == 0 && rank > 0);
                if (spec->cut.blocks == 0) {
                    assert_int_equal(spec->elems, whole.params[p].elems);
                    continue;
                }
                assert_int_equal(spec->cut.begin, next[p]);
                next[p] += spec->elems;
            }
            assert_ptr_equal(m.layers[0].model, &m);
            model_free(&m);
        }
        for (int p = 0; p < whole.n_params; p++)
            if (whole.params[p].cut.blocks > 0)
                assert_int_equal(next[p], whole.params[p].cut.elems);
        /* 14 tokens in blocks of 4: the last rank of 4 has 2 */
        OK(model_share(&whole, size - 1, size, false));
        assert_int_equal(find(&whole, "wte")->dims[0], size == 4 ? 2 : size == 2 ? 6 : V);
        model_free(&whole);
    }
    const model_config c = config_of("gpt2", 2);
    model m;
    OK(model_create(&c, &m));
    assert_int_equal(model_share(&m, 0, 4, false), FSDP_EINVAL);
    assert_says("--tp: got 4, expected a divisor of --tp-blocks, 2");
    model_free(&m);
}

/* 4 blocks with 2 heads of keys: ranks 0 and 1 have the first, 2 and 3 the second. */
TEST(test_shared_keys)
{
    model_config c = config_of("llama", HEADS);
    model m;
    c.n_kv_head = 2;
    for (int rank = 0; rank < HEADS; rank++) {
        OK(model_create(&c, &m));
        OK(model_share(&m, rank, HEADS, false));
        const param_spec *spec = find(&m, "k_proj.weight");
        assert_int_equal(spec->elems, C / HEADS * C);
        assert_int_equal(spec->cut.begin, (size_t)rank / 2 * spec->elems);
        assert_int_equal(spec->cut.elsewhere, rank % 2);
        assert_int_equal(m.kv_share, 2);
        model_free(&m);
    }
}

/* ---- products -------------------------------------------------------------------------------- */

/* A layer's call on numbers from Philox. */
typedef struct rig {
    model m;
    const layer *l;
    void *params[LAYER_MAX_PARAMS];
    float *grads[LAYER_MAX_PARAMS];
    layer_io io;
    layer_arrays k;
} rig;

static void rig_open(rig *r, const char *family, size_t blocks, size_t n_kv_head)
{
    model_config c = config_of(family, blocks);
    c.n_kv_head = n_kv_head;
    *r = (rig){.k.sum = calloc(8, (ROWS * C + 16) * sizeof(float))};
    OK(model_create(&c, &r->m));
    r->l = &r->m.layers[1]; /* attention: c_attn is parameter 2, c_proj parameter 4 */
    for (int k = 0; k < r->l->n_params; k++) {
        const param_spec *spec = &r->m.params[r->l->first_param + k];
        float *file = normals(40 + (uint64_t)k, 1.0f, spec->elems), *x;
        x = calloc(spec->elems + 1, sizeof *x);
        for (size_t e = 0, run; e < spec->elems; e++)
            x[e] = file[param_in_file(spec, e, &run)];
        free(file);
        r->params[k] = x;
        r->grads[k] = calloc(spec->elems + 1, sizeof(float));
    }
    static float d_in[1];
    static const bool OVERWRITE[LAYER_MAX_PARAMS] = {0};
    r->io = (layer_io){.batch = B,
                       .seq_len = T,
                       .leaves = 1,
                       .type = DTYPE_F32,
                       .d_in = d_in,
                       .params = r->params,
                       .grads = r->grads,
                       .overwrite = OVERWRITE};
}

static void rig_close(rig *r)
{
    for (int k = 0; k < r->l->n_params; k++) {
        free(r->params[k]);
        free(r->grads[k]);
    }
    free(r->k.sum);
    model_free(&r->m);
}

/* Element (row, col) of a parameter, or of its gradient, in Hugging Face's order. */
static float value(const rig *r, void *const *arrays, int k, size_t row, size_t col)
{
    const param_spec *spec = &r->m.params[r->l->first_param + k];
    const size_t cols = spec->n_dims > 1 ? spec->cut.dims[1] : 0;
    size_t run;
    return ((const float *)arrays[k])[param_from_file(spec, spec->cut.blocks ? spec->cut.blocks : 1,
                                                      row * cols + col, &run)];
}

/* Column `col` of row `row` of an activation [ROWS, cols], as its blocks have it: c_attn's columns
 * are q | k | v (parts 3). */
static size_t place(size_t row, size_t col, size_t cols, size_t blocks, size_t parts)
{
    const size_t width = cols / parts / blocks, part = col / (cols / parts);
    const size_t in_part = col % (cols / parts), g = in_part / width;
    return (g * ROWS + row) * parts * width + part * width + in_part % width;
}

/* |got - want| is at most (n + 3) u times the sum of sizes: n products are added in some order, and
 * a bias, a residual and a last rounding follow. */
static void near(float got, double want, double sizes, size_t n, const char *what)
{
    const double bound = 1.01 * (double)(n + 3) * 0x1p-24 * sizes;
    if (!(fabs((double)got - want) <= bound))
        fail_msg("%s: got %.9g, expected %.9g, at most %g apart", what, (double)got, want, bound);
}

#define X(row, i)  ((double)x[place(row, i, n_in, in_blocks, 1)])
#define DY(row, j) ((double)d_y[place(row, j, n_out, out_blocks, parts)])
/* The gradients of weight k and its bias, from x and d_y. */
static void check_grads(const rig *r, const float *x, const float *d_y, size_t blocks, int k)
{
    const size_t n_in = C, n_out = k == 2 ? 3 * C : C, parts = k == 2 ? 3 : 1;
    const size_t in_blocks = k == 2 ? 1 : blocks, out_blocks = k == 2 ? blocks : 1;
    void *grads[LAYER_MAX_PARAMS];
    for (int i = 0; i < r->l->n_params; i++)
        grads[i] = r->grads[i];
    for (size_t j = 0; j < n_out; j++) {
        double d_b = 0.0, of_b = 0.0;
        for (size_t row = 0; row < ROWS; row++) {
            d_b += DY(row, j);
            of_b += fabs(DY(row, j));
        }
        near(value(r, grads, k + 1, 0, j), d_b, of_b, ROWS, "d_b");
        for (size_t i = 0; i < n_in; i++) {
            double want = 0.0, sizes = 0.0;
            for (size_t row = 0; row < ROWS; row++) {
                want += X(row, i) * DY(row, j);
                sizes += fabs(X(row, i) * DY(row, j));
            }
            near(value(r, grads, k, i, j), want, sizes, ROWS, "d_w");
        }
    }
}

/* c_attn (k = 2): y = x w + b, and its gradients from d_y; by columns. c_proj (k = 4): by rows. */
static void check_products(const ops *o, stream *s, size_t blocks, int k)
{
    const bool by_cols = k == 2;
    const size_t n_in = C, n_out = by_cols ? 3 * C : C, parts = by_cols ? 3 : 1;
    const size_t in_blocks = by_cols ? 1 : blocks, out_blocks = by_cols ? blocks : 1;
    rig r;
    rig_open(&r, "gpt2", blocks, 0);
    float *x = normals(1, 1.0f, ROWS * n_in), *d_y = normals(2, 1.0f, ROWS * n_out);
    float *y = calloc(ROWS * n_out, sizeof *y), *d_x = calloc(ROWS * n_in, sizeof *d_x);
    float *residual = by_cols ? NULL : normals(3, 1.0f, ROWS * n_out);
    OK(linear(r.l, o, s, &r.io,
              &(linear_args){
                  .y = y, .x = x, .residual = residual, .k = &r.k, .weight = k, .in_out = true},
              1));
    OK(linear_backward(
        r.l, o, s, &r.io,
        &(linear_grad){.d_x = d_x, .d_y = d_y, .x = x, .k = &r.k, .weight = k, .in_out = true}, 1));
    OK(stream_sync(s));
#define W(i, j) ((double)value(&r, r.params, k, i, j))
    for (size_t row = 0; row < ROWS; row++)
        for (size_t j = 0; j < n_out; j++) {
            double want = (double)value(&r, r.params, k + 1, 0, j), sizes = fabs(want);
            const double more = residual ? (double)residual[row * n_out + j] : 0.0;
            for (size_t i = 0; i < n_in; i++) {
                want += X(row, i) * W(i, j);
                sizes += fabs(X(row, i) * W(i, j));
            }
            near(y[place(row, j, n_out, out_blocks, parts)], want + more, sizes + fabs(more), n_in,
                 "y");
        }
    for (size_t row = 0; row < ROWS; row++)
        for (size_t i = 0; i < n_in; i++) {
            double want = 0.0, sizes = 0.0;
            for (size_t j = 0; j < n_out; j++) {
                want += DY(row, j) * W(i, j);
                sizes += fabs(DY(row, j) * W(i, j));
            }
            near(d_x[place(row, i, n_in, in_blocks, 1)], want, sizes, n_out, "d_x");
        }
    check_grads(&r, x, d_y, blocks, k);
    void *arrays[] = {x, d_y, y, d_x, residual};
    for (size_t i = 0; i < sizeof arrays / sizeof *arrays; i++)
        free(arrays[i]);
    rig_close(&r);
}

/* The gradient of the input of Llama's q, k and v: each of the heads of keys counts once, however
 * many blocks share it. d_q is [ROWS, width] for each block, d_k and d_v for each head. */
static void check_shared_input(const ops *o, stream *s, size_t blocks)
{
    enum { KV = 2, D = C / HEADS, Q = 1, K = 2, V_ = 3 };
    const size_t cols[] = {0, C, KV * D, KV * D};
    float *d[4], d_x[ROWS * C];
    linear_grad grads[3];
    rig r;
    rig_open(&r, "llama", blocks, KV);
    for (int k = Q; k <= V_; k++) {
        d[k] = normals((uint64_t)k, 1.0f, ROWS * cols[k]);
        grads[k - 1] = (linear_grad){.d_x = d_x, .d_y = d[k], .x = d[Q], .k = &r.k, .weight = k};
    }
    OK(linear_backward(r.l, o, s, &r.io, grads, 3));
    OK(stream_sync(s));
    for (size_t row = 0; row < ROWS; row++)
        for (size_t i = 0; i < C; i++) {
            double want = 0.0, sizes = 0.0;
            for (int k = Q; k <= V_; k++)
                for (size_t j = 0; j < cols[k]; j++) {
                    const size_t n = k == Q || blocks < KV ? blocks : KV;
                    const double x = (double)d[k][place(row, j, cols[k], n, 1)] *
                                     (double)value(&r, r.params, k, j, i);
                    want += x;
                    sizes += fabs(x);
                }
            near(d_x[row * C + i], want, sizes, C + 2 * KV * D, "d_x of q, k and v");
        }
    for (int k = Q; k <= V_; k++)
        free(d[k]);
    rig_close(&r);
}

TEST(test_products)
{
    device *d;
    OK(device_open(&(device_config){.backend = &device_cpu, .n_threads = 1}, &d));
    for (int t = 0; t < 2; t++)
        for (size_t blocks = 1; blocks <= HEADS; blocks *= 2) {
            const ops *o = t ? ops_cpu_portable() : ops_cpu_fast();
            for (int k = 2; k <= 4; k += 2)
                check_products(o, device_compute_stream(d), blocks, k);
            check_shared_input(o, device_compute_stream(d), blocks);
        }
    device_close(d);
}

int main(void)
{
    return tests_run(NULL, NULL);
}
