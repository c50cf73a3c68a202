/* test_chunk_loss.c -- a head that computes its loss in chunks: the bits of a head without chunks
 * in portable operations, and these the bits of the operations on dense logits. Fast operations
 * differ from these in the products only, to the bit (test_ops.c), and test_ops_double.c bounds
 * every form of a product. */
#include <stdlib.h>
#include <string.h>
#include "tests/unit/model_lib.h"
#include "tests/unit/ops_check_lib.h"

enum { BATCH = 3, SEQ = 50, ROWS = BATCH * SEQ, C = 34, V = 301 };
static const size_t CHUNKS[] = {1, 7, 50, 64, ROWS, 1000};

/* ---- a head ---------------------------------------------------------------------------------- */

/* A model after a training and an evaluation. The head's weight has its own gradient, separate from
 * the tied one. */
typedef struct head {
    rig r;
    float loss;
} head;

static float *grad_of(const head *h, int k)
{
    return h->r.views.grads[h->r.m.n_params - 3 + k];
}

static void head_run(head *h, size_t vocab, dtype type, size_t chunk_rows)
{
    const model_config config = {.family = "gpt2",
                                 .n_blocks = 1,
                                 .n_head = 2,
                                 .d_model = C,
                                 .d_ff = 14,
                                 .vocab_size = vocab,
                                 .max_seq_len = SEQ};
    rig_open(&h->r, &(rig_config){.model = &config,
                                  .ops = ops_cpu_portable(),
                                  .type = type,
                                  .batch = BATCH,
                                  .seq_len = SEQ,
                                  .chunk_rows = chunk_rows});
    const int tied = h->r.m.n_params - 1;
    const size_t bytes = h->r.m.params[tied].elems * sizeof(float);
    h->r.views.grads[tied] = rig_array(bytes);
    memset(h->r.views.grads[tied], 0, bytes);
    const float eval_loss = rig_forward(&h->r, false, false);
    assert_true(rig_forward(&h->r, false, true) == eval_loss);
    h->loss = rig_forward(&h->r, true, true);
    assert_true(chunk_rows == 0 || h->loss == -1.0f); /* not known yet */
    rig_backward(&h->r);
    h->loss = *h->r.loss;
    assert_true(eval_loss == h->loss);
}

static void head_free(head *h)
{
    free(grad_of(h, 2)); /* rig_close frees the others */
    rig_close(&h->r);
}

/* ---- bits ------------------------------------------------------------------------------------ */

TEST(test_same_bits)
{
    for (int t = 0; t < 4; t++) {
        const dtype type = t % 2 ? DTYPE_BF16 : DTYPE_F32;
        const size_t vocab = t < 2 ? V : 1000;
        head whole;
        head_run(&whole, vocab, type, 0);
        for (size_t i = 0; i < sizeof CHUNKS / sizeof *CHUNKS; i++) {
            head h;
            head_run(&h, vocab, type, CHUNKS[i]);
            assert_memory_equal(&h.loss, &whole.loss, sizeof h.loss);
            assert_memory_equal(h.r.logits, whole.r.logits,
                                ROWS * h.r.m.config.vocab_size * dtype_bytes(type));
            rig_expect_same_grads(&h.r, &whole.r);
            head_free(&h);
        }
        head_free(&whole);
    }
}

/* The head's padded rows give the gradients that the operations give for dense logits. */
TEST(test_padded_rows)
{
    for (int t = 0; t < 2; t++) {
        const dtype type = t ? DTYPE_BF16 : DTYPE_F32;
        head h;
        head_run(&h, V, type, 0);
        rig *r = &h.r;
        const layer_io io = rig_io(r, r->m.n_layers - 1);
        float stats[2][ROWS], d_norms[2][ROWS] = {{0}}, loss;
        float *d_w = calloc(V * C, sizeof *d_w);
        void *norm = rig_array(ROWS * C * dtype_bytes(type));
        void *d_norm = rig_array(ROWS * C * dtype_bytes(type));
        void *d_in = rig_array(ROWS * C * dtype_bytes(type));
        CALL(r->o, r->s, layernorm, .out = norm, .mean = stats[0], .rstd = stats[1], .in = io.in,
             .gain = io.params[0], .bias = io.params[1], .rows = ROWS, .cols = C, .eps = 1e-5f,
             .type = type);
        CALL(r->o, r->s, cross_entropy, .loss = &loss, .d_logits = r->logits, .logits = r->logits,
             .targets = r->targets, .rows = ROWS, .vocab = V, .type = type);
        CALL(r->o, r->s, matmul, .out = d_w, .a = r->logits, .b = norm, .m = V, .n = C, .k = ROWS,
             .trans_a = true, .accumulate = true, .type = type);
        CALL(r->o, r->s, matmul, .out = d_norm, .a = r->logits, .b = io.params[2], .m = ROWS,
             .n = C, .k = V, .type = type, .out_type = type);
        CALL(r->o, r->s, layernorm_backward, .d_in = d_in, .d_gain = d_norms[0],
             .d_bias = d_norms[1], .d_out = d_norm, .in = io.in, .gain = io.params[0],
             .mean = stats[0], .rstd = stats[1], .rows = ROWS, .cols = C, .type = type);
        assert_memory_equal(&loss, &h.loss, sizeof loss);
        assert_memory_equal(d_w, grad_of(&h, 2), V * C * sizeof *d_w);
        assert_memory_equal(d_in, r->d_out[r->m.n_layers - 2], ROWS * C * dtype_bytes(type));
        free(norm), free(d_norm), free(d_in), free(d_w);
        head_free(&h);
    }
}

/* A frozen weight costs no product, and the other gradients are the same. */
static fsdp_status (*plain_matmul)(stream *s, const matmul_args *a);
static int n_products;

static fsdp_status counted_matmul(stream *s, const matmul_args *a)
{
    n_products++;
    return plain_matmul(s, a);
}

static int products_of(head *h, bool frozen)
{
    rig *r = &h->r;
    const int last = r->m.n_layers - 1;
    const layer *l = &r->m.layers[last];
    float *grads[3] = {grad_of(h, 0), grad_of(h, 1), frozen ? NULL : grad_of(h, 2)};
    ops counted = *r->o;
    plain_matmul = counted.matmul;
    counted.matmul = counted_matmul;
    layer_io io = rig_io(r, last);
    io.training = io.keeps = true;
    io.scratch = r->scratch[1];
    io.d_in = r->d_out[last - 1];
    io.grads = grads;
    io.overwrite = (const bool[]){true, true, true};
    n_products = 0;
    OK(l->forward(l, &counted, r->s, &io));
    OK(l->backward(l, &counted, r->s, &io));
    return n_products;
}

TEST(test_products)
{
    head whole;
    head_run(&whole, V, DTYPE_F32, 0);
    head parts;
    head_run(&parts, V, DTYPE_F32, 50);
    assert_int_equal(products_of(&whole, false), 3);
    assert_int_equal(products_of(&parts, false), 3 * 3); /* none is computed twice */
    for (int k = 0; k < 3; k++) /* only later chunks read what the gradients hold */
        assert_memory_equal(grad_of(&parts, k), grad_of(&whole, k),
                            parts.r.m.params[parts.r.m.n_params - 3 + k].elems * sizeof(float));
    assert_int_equal(products_of(&parts, true), 3 * 2);
    head_free(&whole);
    head_free(&parts);
}

int main(void)
{
    return tests_run(NULL, NULL);
}
