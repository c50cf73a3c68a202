/* row_softmax.h -- rows of softmax, for cross-entropy and for a block of attention's scores.
 * See row_sums.h. */
#pragma once
#include "common/base/pmath.h"
#include "common/ops/ops.h"
#include "common/ops/row_sums.h"

/* ---- cross-entropy -------------------------------------------------------------------------- */

/* exp(MASKED - x) is 0 for every possible score x, and MASKED - MASKED is not NaN. */
#define MASKED (-1e30f)

/* Elements computed at a time: a multiple of LANES, so an element's lane does not change. */
enum { EXP_PIECE = 8 * LANES };

/* exp_piece -- exp(x[i] - top), i < n <= EXP_PIECE, added to acc by lanes. They are stored in `e`
 * unless `e` is NULL; e may be x. */
ROW_FN void exp_piece(float *acc, const void *x, size_t n, float top, float *e, dtype type)
{
    float piece[EXP_PIECE];
    for (size_t i = 0; i < n; i++)
        piece[i] = pm_expf_upto40(row_load(x, i, type) - top); /* never above 0 */
    ROW_BY_LANES(n, i, l, acc[l] += piece[i]);
    if (e)
        memcpy(e, piece, n * sizeof *e);
}

/* sum_exp -- the sum of exp(x[i] - top) by lanes; e as in exp_piece. */
ROW_FN float sum_exp(const void *x, size_t n, float top, float *e, dtype type)
{
    float acc[LANES] = {0};
    size_t i = 0;
    for (; i + EXP_PIECE <= n; i += EXP_PIECE)
        exp_piece(acc, row_at(x, i, type), EXP_PIECE, top, e ? e + i : NULL, type);
    exp_piece(acc, row_at(x, i, type), n - i, top, e ? e + i : NULL, type);
    return lanes_sum(acc);
}

/* logits_row, d_logits_row -- row r; NULL if there is no d_logits. */
ROW_FN const void *logits_row(const cross_entropy_args *a, size_t r, dtype type)
{
    return row_at(a->logits, r * row_stride(a->logits_stride, a->vocab), type);
}
ROW_FN void *d_logits_row(const cross_entropy_args *a, size_t r, dtype type)
{
    const size_t at = r * row_stride(a->d_logits_stride, a->vocab);
    return a->d_logits ? row_out_at(a->d_logits, at, type) : NULL;
}

/* vocab_part_of -- the part of a row of `vocab` logits. place: of the target; vocab or more: not
 * among them. e: as in exp_piece. An empty block has top MASKED, whose exponential is 0. */
ROW_FN vocab_part vocab_part_of(const void *logits, size_t vocab, size_t place, float *e,
                                dtype type)
{
    vocab_part x = {MASKED, 0.0f, 0.0f};
    if (place < vocab) /* first: e may be logits */
        x.target = row_load(logits, place, type);
    if (vocab > 0) {
        x.top = row_max(logits, vocab, type);
        x.sum = sum_exp(logits, vocab, x.top, e, type);
    }
    return x;
}

/* vocab_part_row -- row r of vocab_part. */
ROW_FN void vocab_part_row(const vocab_part_args *a, size_t r, dtype type)
{
    const void *logits = row_at(a->logits, r * row_stride(a->stride, a->vocab), type);
    a->parts[r] = vocab_part_of(logits, a->vocab, cut_place(a->cut, a->targets[r]), NULL, type);
}

/* vocab_join -- the part of row r of the whole vocabulary, from the parts of its blocks. */
ROW_FN vocab_part vocab_join(const cross_entropy_args *a, size_t r)
{
    const size_t n = a->n_parts, each = (a->cut.all + n - 1) / n;
    vocab_part x = a->parts[(size_t)a->targets[r] / each * a->rows + r];
    float slot[VOCAB_PART_LEVELS]; /* as in tree_sum.h */
    for (size_t i = 0; i < n; i++)
        x.top = larger(a->parts[i * a->rows + r].top, x.top);
    for (size_t i = 0; i < n; i++) {
        const vocab_part p = a->parts[i * a->rows + r];
        size_t level = 0;
        for (x.sum = p.sum * pm_expf_upto40(p.top - x.top); (i >> level & 1) != 0; level++)
            x.sum = slot[level] + x.sum;
        slot[level] = x.sum;
    }
    return x;
}

/* cross_entropy_row -- the loss of row r, and its gradient if d_logits is not NULL. In fp32,
 * d_logits holds the exponentials between the passes; bf16 would round them, so they are computed
 * again. */
ROW_FN double cross_entropy_row(const cross_entropy_args *a, size_t r, dtype type)
{
    const size_t vocab = a->vocab, place = cut_place(a->cut, a->targets[r]);
    const void *logits = logits_row(a, r, type);
    void *d_logits = d_logits_row(a, r, type);
    if (a->targets[r] == NO_TARGET) {
        if (d_logits)
            memset(d_logits, 0, vocab * dtype_bytes(type));
        return 0.0;
    }
    float *kept = type == DTYPE_F32 && !a->parts ? (float *)d_logits : NULL;
    const vocab_part x =
        a->parts ? vocab_join(a, r) : vocab_part_of(logits, vocab, place, kept, type);
    if (kept) {
        for (size_t i = 0; i < vocab; i++)
            kept[i] /= x.sum;
        kept[place] -= 1.0f;
    } else if (d_logits) {
        for (size_t i = 0; i < vocab; i++)
            row_store(d_logits, i, pm_expf_upto40(row_load(logits, i, type) - x.top) / x.sum, type);
        if (place < vocab)
            row_store(d_logits, place, pm_expf_upto40(x.target - x.top) / x.sum - 1.0f, type);
    }
    return pm_log((double)x.sum) + ((double)x.top - (double)x.target);
}

/* ---- attention: one row of a block of scores ------------------------------------------------- */

/* query_element -- index in q or k, by its stride, of head h in row t of sequence b. value_element
 * -- the same in v or out. */
ROW_FN size_t query_element(const attention_shape *x, size_t stride, size_t b, size_t t, size_t h)
{
    return (b * x->seq_len + t) * stride + h * x->head_dim;
}
ROW_FN size_t value_element(const attention_shape *x, size_t stride, size_t b, size_t t, size_t h)
{
    return (b * x->seq_len + t) * stride + h * x->v_head_dim;
}

/* The columns of a row: it sees n_seen keys; `width` columns are computed, masked from n_seen on;
 * columns from `width` to `end` are 0. width and end are whole vectors. */
typedef struct row_extent {
    size_t n_seen, width, end;
} row_extent;

/* whole_vectors -- n rounded up to LANES. */
ROW_FN size_t whole_vectors(size_t n)
{
    return (n + LANES - 1) / LANES * LANES;
}

/* row_extent_of -- query number `query` sees keys 0 ... query. The block has n_keys keys, from
 * first_key on. */
ROW_FN row_extent row_extent_of(size_t query, size_t first_key, size_t n_keys)
{
    const size_t n_before = query + 1 - first_key, n_seen = n_before < n_keys ? n_before : n_keys;
    const row_extent x = {n_seen, whole_vectors(n_seen), whole_vectors(n_keys)};
    return x;
}

/* clear_rest -- columns beyond `width` become 0. */
ROW_FN void clear_rest(float *row, row_extent x)
{
    for (size_t c = x.width; c < x.end; c += LANES)
        memset(row + c, 0, LANES * sizeof *row);
}

/* scale_and_mask -- turn products into scores, and mask keys that are not seen. Works on whole
 * vectors, so columns beyond the last key of a block are overwritten. */
ROW_FN void scale_and_mask(float *row, row_extent x, float scale)
{
    for (size_t c = 0; c < x.width; c += LANES)
        for (size_t l = 0; l < LANES; l++)
            row[c + l] *= scale;
    for (size_t c = x.n_seen; c < x.width; c++)
        row[c] = MASKED;
}

/* exp_row -- row[c] = exp(row[c] - shift), 0 for masked columns. shift is the maximum of the scores
 * or, in backward, lse, which is no smaller; so no score is far above shift. */
ROW_FN void exp_row(float *row, row_extent x, float shift)
{
    for (size_t c = 0; c < x.width; c += LANES)
        for (size_t l = 0; l < LANES; l++)
            row[c + l] = pm_expf_upto40(row[c + l] - shift);
    clear_rest(row, x);
}

/* softmax_top -- the largest score so far, including this row's. */
ROW_FN float softmax_top(const float *row, row_extent x, float top, bool first)
{
    const float block_top = row_max(row, x.width, DTYPE_F32);
    return first || block_top > top ? block_top : top;
}

/* softmax_carry -- add a row of exponentials, relative to new_top, to *sum, and set *top = new_top;
 * returns the factor for the sums accumulated before. */
ROW_FN float softmax_carry(const float *row, row_extent x, float new_top, float *top, float *sum,
                           bool first)
{
    const float block_sum = row_sum(row, x.width, DTYPE_F32);
    const float keep = first ? 0.0f : pm_expf(*top - new_top);
    *sum = first ? block_sum : *sum * keep + block_sum;
    *top = new_top;
    return keep;
}

/* softmax_row -- one row of the running softmax: scores become exponentials; returns the factor. */
ROW_FN float softmax_row(float *row, row_extent x, float *top, float *sum, bool first)
{
    const float new_top = softmax_top(row, x, *top, first);
    exp_row(row, x, new_top);
    return softmax_carry(row, x, new_top, top, sum, first);
}

/* divide_row -- out[at + d] = x[d] / divisor, d < n, rounded to `type`. */
ROW_FN void divide_row(void *out, size_t at, const float *x, size_t n, float divisor, dtype type)
{
    for (size_t d = 0; d < n; d++)
        row_store(out, at + d, x[d] / divisor, type);
}

/* softmax_backward_row -- d_scores = p * (d_p - delta) * scale, in place of d_p; masked columns
 * become 0. */
ROW_FN void softmax_backward_row(float *d_row, const float *p_row, row_extent x, float delta,
                                 float scale)
{
    for (size_t c = 0; c < x.width; c += LANES)
        for (size_t l = 0; l < LANES; l++)
            d_row[c + l] = p_row[c + l] * (d_row[c + l] - delta) * scale;
    clear_rest(d_row, x);
}
