/* op_list.h -- every operation of ops.h, once: which backends have it, what a call costs, and which
 * memory it reads and writes. It is included wherever something is made for each operation, and
 * undefines OP at its end:
 *
 *     #define OP(op, ...) fsdp_status (*op)(stream *, const op##_args *);
 *     #include "common/ops/op_list.h"             makes the members of struct ops
 *
 * An entry is OP(name, cpu, cuda, npu,  type, n, flops,  touches), in terms of the operation's
 * arguments, `const name_args *a`:
 *
 *   cpu, cuda  BOTH: the tables `fast` and `portable` share one function, cpu_name or cuda_name.
 *              EACH: each table has its own. On the CPU, they differ in the gemm that they call
 *   npu        YES. NO: every call is refused. NO_ABOVE(x, most, words): a call with x > most is
 *              refused; the words describe it
 *   type       how arrays are stored, unless said otherwise
 *   n          the number of elements of the output, or of another array that sets the cost
 *   flops      each addition, multiplication, division, root and exponential counts 1; here n is a
 *              double
 *   touches    some of the words below, one after the other. Each array counts once per call,
 *              however often a kernel reads it, and twice if it is read and written
 *
 *   READS, WRITES(array, elems, type)    a->array [elems]
 *   DELIVERS(array, elems, type, adds)   written; also read if `adds`
 *   READS_PART, WRITES_PART(array, elems, span, type)
 *                                        `elems` count; they are among the first `span` of a->array
 *   READS_HEADS(array, stride, heads, width), WRITES_HEADS(..., type)
 *                                        rows of attention, by names of members of a->shape
 *   READS_TOKENS(array, elems)           token numbers
 *   READS_ONE, WRITES_ONE(array)         *a->array, which does not count
 *   IF(array, x)                         x, or 0 if a->array is NULL; also in flops
 *   PRODUCTS(x)                          x more FLOPs, which multiply bf16 numbers if type is bf16
 *   NAMED(form, m, n, k)                 these are part of the name in a profile
 *   COMPUTES(x)                          if x is 0, instead of n, there is nothing to compute
 *   CHECK(x)                             x is the status of a check of the arguments (op_work.c)
 *   REQUIRES(x)                          x is asserted if there is something to compute
 *
 * Attention: two matrix products forward, five backward, over the half of the T x T scores that the
 * causal mask leaves. The softmax between them is not counted (its share is about 1 / D). */
/* clang-format off */
OP(matmul, EACH, EACH, YES,  a->type, a->m * a->n, IF(bias, n) + IF(residual, n),
   COMPUTES(a->accumulate ? n * a->k : n) CHECK(check_matmul(a))
   PRODUCTS(2 * n * a->k) NAMED(matmul_form(a), a->m, a->n, a->k)
   WRITES_PART(out, a->accumulate ? 2 * n : n, matmul_out_span(a), a->out_type)
   READS_PART(a, a->m * a->k, matmul_a_span(a), type) READS(b, a->k * a->n, type)
   READS(bias, IF(bias, a->n), type)
   READS_PART(residual, IF(residual, n), matmul_out_span(a), type))

OP(matmul_finish, BOTH, BOTH, YES,  a->of.type, a->of.m * a->of.n,
   IF(of.bias, n) + IF(of.residual, n), CHECK(check_matmul(&a->of))
   WRITES_PART(of.out, n, matmul_out_span(&a->of), a->of.out_type)
   WRITES_PART(products, 2 * n, matmul_out_span(&a->of), DTYPE_F32)
   READS(of.bias, IF(of.bias, a->of.n), type)
   READS_PART(of.residual, IF(of.residual, n), matmul_out_span(&a->of), type))

OP(bias_backward, BOTH, EACH, YES,  a->type, a->rows * a->cols, n,
   COMPUTES(a->overwrite ? a->cols : n)
   DELIVERS(d_bias, a->cols, DTYPE_F32, !a->overwrite) READS(d_out, n, type))

/* Any row of wte may be read, but the moved bytes are a row for each token; d_wte likewise. */
OP(embedding, BOTH, BOTH, NO_ABOVE(a->cut.all, (size_t)0, "blocks of a vocabulary"),  a->type, a->batch * a->seq_len * a->width, IF(wpe, n),
   WRITES(out, n, type) READS_PART(wte, n, a->vocab * a->width, type)
   READS(wpe, IF(wpe, a->seq_len * a->width), type) READS_TOKENS(tokens, a->batch * a->seq_len))
OP(embedding_backward, BOTH, BOTH, NO_ABOVE(a->cut.all, (size_t)0, "blocks of a vocabulary"),  a->type, a->batch * a->seq_len * a->width,
   n + IF(d_wpe, n), WRITES_PART(d_wte, 2 * n, a->vocab * a->width, DTYPE_F32)
   DELIVERS(d_wpe, IF(d_wpe, a->seq_len * a->width), DTYPE_F32, true)
   WRITES(order, IF(order, 2 * a->batch * a->seq_len), DTYPE_F32) /* as large */
   READS(d_out, n, type) READS_TOKENS(tokens, a->batch * a->seq_len))

OP(layernorm, BOTH, EACH, YES,  a->type, a->rows * a->cols, 8 * n,
   WRITES(out, n, type) WRITES(mean, a->rows, DTYPE_F32) WRITES(rstd, a->rows, DTYPE_F32)
   READS(in, n, type) READS(gain, a->cols, type) READS(bias, a->cols, type))
OP(layernorm_backward, BOTH, EACH, YES,  a->type, a->rows * a->cols, 18 * n + IF(d_residual, n),
   COMPUTES(a->overwrite ? a->cols : n)
   WRITES(d_in, n, type) DELIVERS(d_gain, a->cols, DTYPE_F32, !a->overwrite)
   DELIVERS(d_bias, a->cols, DTYPE_F32, !a->overwrite)
   READS(d_out, n, type) READS(in, n, type) READS(gain, a->cols, type)
   READS(mean, a->rows, DTYPE_F32) READS(rstd, a->rows, DTYPE_F32)
   READS(d_residual, IF(d_residual, n), type))

OP(rmsnorm, BOTH, EACH, YES,  a->type, a->rows * a->cols, 4 * n,
   WRITES(out, n, type) WRITES(rstd, a->rows, DTYPE_F32)
   READS(in, n, type) READS(gain, a->cols, type))
OP(rmsnorm_backward, BOTH, EACH, YES,  a->type, a->rows * a->cols, 12 * n + IF(d_residual, n),
   COMPUTES(a->overwrite ? a->cols : n)
   WRITES(d_in, n, type) DELIVERS(d_gain, a->cols, DTYPE_F32, !a->overwrite)
   READS(d_out, n, type) READS(in, n, type) READS(gain, a->cols, type)
   READS(rstd, a->rows, DTYPE_F32) READS(d_residual, IF(d_residual, n), type))

OP(rope, BOTH, BOTH, YES,  a->type, a->batch * a->seq_len * a->n_head * a->head_dim,
   3 * n + 8 * (double)(a->batch * a->seq_len * a->head_dim),
   REQUIRES(a->head_dim % 2 == 0 && a->head_dim <= 2 * ROPE_MAX_PAIRS)
   WRITES_PART(x, 2 * n, span_of(a->batch * a->seq_len, a->stride, a->n_head * a->head_dim), type))

OP(swiglu, BOTH, EACH, YES,  a->type, a->elems, 5 * n,
   WRITES(out, n, type) READS(gate, n, type) READS(up, n, type))
OP(swiglu_backward, BOTH, EACH, YES,  a->type, a->elems, 14 * n,
   WRITES(d_gate, n, type) WRITES(d_up, n, type)
   READS(d_out, n, type) READS(gate, n, type) READS(up, n, type))

OP(gelu, BOTH, EACH, YES,  a->type, a->elems, 9 * n, WRITES(out, n, type) READS(in, n, type))
OP(gelu_backward, BOTH, EACH, YES,  a->type, a->elems, 19 * n,
   WRITES(d_in, n, type) READS(d_out, n, type) READS(in, n, type))

/* n: the elements of forward's output, in backward too. */
OP(conv2d, EACH, BOTH, NO,  a->shape.type, conv_out_elems(&a->shape), n,
   CHECK(check_conv(name, &a->shape)) PRODUCTS(2 * n * conv_fan_in(&a->shape))
   WRITES(out, n, type) READS(in, conv_in_elems(&a->shape), type)
   READS(weight, conv_weight_elems(&a->shape), type) READS(bias, a->shape.out_channels, type))
OP(conv2d_backward, EACH, BOTH, NO,  a->shape.type, conv_out_elems(&a->shape), IF(d_bias, n),
   COMPUTES(a->overwrite ? conv_weight_elems(&a->shape) : n) CHECK(check_conv(name, &a->shape))
   PRODUCTS((IF(d_in, 2) + IF(d_weight, 2)) * n * conv_fan_in(&a->shape))
   WRITES(d_in, IF(d_in, conv_in_elems(&a->shape)), type)
   DELIVERS(d_weight, IF(d_weight, conv_weight_elems(&a->shape)), DTYPE_F32, !a->overwrite)
   DELIVERS(d_bias, IF(d_bias, a->shape.out_channels), DTYPE_F32, !a->overwrite)
   READS(d_out, n, type) READS(in, IF(d_weight, conv_in_elems(&a->shape)), type)
   READS(weight, IF(d_in, conv_weight_elems(&a->shape)), type))

OP(max_pool2d, BOTH, BOTH, NO,  a->type, a->planes * (a->height / 2) * (a->width / 2), 0,
   WRITES(out, n, type) READS(in, a->planes * a->height * a->width, type))
OP(max_pool2d_backward, BOTH, BOTH, NO,  a->type, a->planes * a->height * a->width, 0,
   WRITES(d_in, n, type) READS(d_out, a->planes * (a->height / 2) * (a->width / 2), type)
   READS(in, n, type))

OP(relu, BOTH, BOTH, NO,  a->type, a->elems, 0, WRITES(out, n, type) READS(in, n, type))
OP(relu_backward, BOTH, BOTH, NO,  a->type, a->elems, 0,
   WRITES(d_in, n, type) READS(d_out, n, type) READS(in, n, type))

OP(dropout, BOTH, BOTH, NO,  a->type, a->samples * a->width, n,
   CHECK(check_dropout(a)) WRITES(out, n, type) READS(in, n, type))

OP(attention, EACH, EACH, NO_ABOVE(a->shape.v_head_dim, a->shape.head_dim, "heads of v wider than heads of q and k"),
   a->shape.type, a->shape.batch * a->shape.n_head * a->shape.seq_len,
   n * (double)a->shape.seq_len * (double)(a->shape.head_dim + a->shape.v_head_dim),
   CHECK(check_heads(name, &a->shape, n))
   WRITES(out, n * a->shape.v_head_dim, type) WRITES(lse, n, DTYPE_F32)
   READS_HEADS(q, q_stride, n_head, head_dim) READS_HEADS(k, k_stride, n_kv_head, head_dim)
   READS_HEADS(v, v_stride, n_kv_head, v_head_dim))
OP(attention_backward, EACH, EACH, NO_ABOVE(a->shape.v_head_dim, a->wide_kv && a->shape.type != DTYPE_F32 ? (size_t)0 : a->shape.head_dim, "heads of v wider than heads of q and k"),
   a->shape.type, a->shape.batch * a->shape.n_head * a->shape.seq_len,
   n * (double)a->shape.seq_len * (double)(3 * a->shape.head_dim + 2 * a->shape.v_head_dim),
   CHECK(check_heads(name, &a->shape, n))
   WRITES_HEADS(d_q, q_stride, n_head, head_dim, type) WRITES_HEADS(d_k, k_stride, n_kv_head, head_dim, kv_type(a))
   WRITES_HEADS(d_v, v_stride, n_kv_head, v_head_dim, kv_type(a))
   READS(d_out, n * a->shape.v_head_dim, type) READS(out, n * a->shape.v_head_dim, type)
   READS(lse, n, DTYPE_F32)
   READS_HEADS(q, q_stride, n_head, head_dim) READS_HEADS(k, k_stride, n_kv_head, head_dim)
   READS_HEADS(v, v_stride, n_kv_head, v_head_dim))

OP(vocab_part, BOTH, BOTH, NO,  a->type, a->rows * a->vocab, 3 * n, COMPUTES(a->rows)
   WRITES(parts, 3 * a->rows, DTYPE_F32)
   READS_PART(logits, n, span_of(a->rows, row_stride(a->stride, a->vocab), a->vocab), type)
   READS_TOKENS(targets, a->rows))
OP(cross_entropy, BOTH, EACH, YES,  a->type, a->rows * a->vocab, 4 * n + IF(d_logits, n),
   COMPUTES(1) WRITES(loss, IF(loss, a->leaves > 1 ? a->leaves : 1), DTYPE_F32) WRITES_ONE(total)
   READS(parts, IF(parts, 3 * a->n_parts * a->rows), DTYPE_F32)
   WRITES_PART(d_logits, IF(d_logits, n), span_of(a->rows, row_stride(a->d_logits_stride, a->vocab), a->vocab), type)
   READS_PART(logits, n, span_of(a->rows, row_stride(a->logits_stride, a->vocab), a->vocab), type)
   READS_TOKENS(targets, a->rows))

OP(cast, BOTH, BOTH, YES,  a->in_type, a->elems, 0, CHECK(check_type(name, a->out_type))
   WRITES(out, n, a->out_type) READS(in, n, type))

OP(add, BOTH, BOTH, YES,  DTYPE_F32, a->elems, n,
   REQUIRES(a->round_to == DTYPE_BF16 || (a->round_to == DTYPE_F32 && a->b))
   WRITES(out, n, type) READS(a, n, type) READS(b, IF(b, n), type))

OP(scale, BOTH, BOTH, YES,  DTYPE_F32, a->elems, n, DELIVERS(x, n, type, true))

OP(sum_squares, BOTH, BOTH, YES,  DTYPE_F32, range_elems(&a->ranges, a->elems), 2 * n,
   WRITES_ONE(sum) READS_PART(x, n, a->elems, type))

OP(clip_coef, BOTH, BOTH, YES,  DTYPE_F32, 1, 4 * n,
   WRITES(norm, 1, type) WRITES(coef, 1, type) READS(sum, RSUM_BINS, DTYPE_I64))

OP(adamw, BOTH, BOTH, YES,  DTYPE_F32, range_elems(&a->ranges, a->elems), 16 * n,
   WRITES_PART(param, 2 * n, a->elems, type) WRITES_PART(m, 2 * n, a->elems, type) WRITES_PART(v, 2 * n, a->elems, type)
   READS_PART(grad, n, a->elems, type) READS_ONE(grad_coef))

OP(sgd, BOTH, BOTH, YES,  DTYPE_F32, range_elems(&a->ranges, a->elems),
   (a->state[0] == NULL ? 5 : a->config.nesterov ? 9 : 7) * n,
   WRITES_PART(param, 2 * n, a->elems, type) WRITES_PART(state[0], IF(state[0], 2 * n), IF(state[0], a->elems), type)
   READS_PART(grad, n, a->elems, type) READS_ONE(grad_coef))

OP(adadelta, BOTH, BOTH, YES,  DTYPE_F32, range_elems(&a->ranges, a->elems), 19 * n,
   WRITES_PART(param, 2 * n, a->elems, type) WRITES_PART(state[0], 2 * n, a->elems, type)
   WRITES_PART(state[1], 2 * n, a->elems, type) READS_PART(grad, n, a->elems, type) READS_ONE(grad_coef))
/* clang-format on */
#undef OP
