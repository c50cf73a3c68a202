/* aclnn_ops.cc -- the operators of aclnn for the stand-in, with the operands that CANN's API
 * reference allows for Atlas A2. aclnn promotes operands of two types; the stand-in refuses
 * them. */
#include "tests/sim/ascend/aclnn_phases.h"
#include <initializer_list>
#include <string.h>
#include "aclnnop/aclnn_add.h"
#include "aclnnop/aclnn_addmm.h"
#include "aclnnop/aclnn_cast.h"
#include "aclnnop/aclnn_copy.h"
#include "aclnnop/aclnn_cos.h"
#include "aclnnop/aclnn_div.h"
#include "aclnnop/aclnn_embedding.h"
#include "aclnnop/aclnn_embedding_dense_backward.h"
#include "aclnnop/aclnn_fill_scalar.h"
#include "aclnnop/aclnn_flash_attention_score.h"
#include "aclnnop/aclnn_flash_attention_score_grad.h"
#include "aclnnop/aclnn_gelu_backward_v2.h"
#include "aclnnop/aclnn_gelu_v2.h"
#include "aclnnop/aclnn_layer_norm.h"
#include "aclnnop/aclnn_layer_norm_backward.h"
#include "aclnnop/aclnn_log.h"
#include "aclnnop/aclnn_logsoftmax.h"
#include "aclnnop/aclnn_logsoftmax_backward.h"
#include "aclnnop/aclnn_mm.h"
#include "aclnnop/aclnn_mul.h"
#include "aclnnop/aclnn_nll_loss.h"
#include "aclnnop/aclnn_nll_loss_backward.h"
#include "aclnnop/aclnn_reduce_sum.h"
#include "aclnnop/aclnn_rms_norm.h"
#include "aclnnop/aclnn_rms_norm_grad.h"
#include "aclnnop/aclnn_rotary_position_embedding.h"
#include "aclnnop/aclnn_silu.h"
#include "aclnnop/aclnn_silu_backward.h"
#include "aclnnop/aclnn_sin.h"
#include "aclnnop/aclnn_sqrt.h"
#include "aclnnop/aclnn_triu.h"
#include "aclnnop/aclnn_zero.h"

static size_t floats_of(const sim_tensor *t)
{
    return (size_t)sim_elems(t);
}

static bool one_type(const sim_call *c, int i, int k)
{
    return c->op.t[i].type == c->op.t[k].type;
}

/* The tensors with these numbers must have one type (expect_shapes: one shape). */
static void expect_types(sim_call *c, std::initializer_list<int> tensors, const char *what)
{
    for (int i : tensors)
        sim_expect(c, one_type(c, *tensors.begin(), i), what);
}

static void expect_shapes(sim_call *c, std::initializer_list<int> tensors, const char *what)
{
    for (int i : tensors)
        sim_expect(c, sim_same_shape(&c->op.t[*tensors.begin()], &c->op.t[i]), what);
}

/* ---- products -------------------------------------------------------------------------------- */

/* Bits of a fraction that [CANN cubeMathType] drops: 1 and 3 multiply fp32 as HF32, which keeps 11
 * of 23 bits; 0 keeps all. */
static int64_t cut_of(const sim_call *c, int8_t cubeMathType)
{
    return c->op.t[0].type == ACL_FLOAT && (cubeMathType == 1 || cubeMathType == 3) ? 12 : 0;
}

/* Check that tensors 0, 1 and 2 are matrices of one type whose shapes fit. */
static aclnnStatus product_end(sim_call *c, int8_t cubeMathType)
{
    const sim_tensor *t = c->op.t;
    sim_expect(c, t[0].n_dims == 2 && t[1].n_dims == 2 && t[2].n_dims == 2, "matrices");
    expect_types(c, {0, 1, 2}, "one type: A2 mixes none");
    sim_expect(
        c, t[0].dim[1] == t[1].dim[0] && t[2].dim[0] == t[0].dim[0] && t[2].dim[1] == t[1].dim[1],
        "shapes [m,k] [k,n] and [m,n]");
    sim_expect(c, cubeMathType >= 0 && cubeMathType <= 4, "a cubeMathType of 0 ... 4");
    c->op.integer[0] = cut_of(c, cubeMathType);
    return sim_phase1_end(c, sim_mm, floats_of(&t[2]));
}

OPERATOR(aclnnMm, const aclTensor *self, const aclTensor *mat2, aclTensor *out, int8_t cubeMathType)
{
    BEGIN(aclnnMm);
    TAKE(self, FLOATS), TAKE(mat2, FLOATS), TAKE(out, FLOATS), TAKE_NONE();
    c.op.number[0] = 1.0;
    return product_end(&c, cubeMathType);
}

OPERATOR(aclnnInplaceAddmm, const aclTensor *selfRef, const aclTensor *mat1, const aclTensor *mat2,
         const aclScalar *beta, const aclScalar *alpha, int8_t cubeMathType)
{
    BEGIN(aclnnInplaceAddmm);
    TAKE(mat1, FLOATS), TAKE(mat2, FLOATS), TAKE(selfRef, FLOATS), TAKE(selfRef, FLOATS);
    c.op.number[0] = sim_take_scalar(&c, "alpha", alpha);
    c.op.number[1] = sim_take_scalar(&c, "beta", beta);
    return product_end(&c, cubeMathType);
}

/* ---- element by element ---------------------------------------------------------------------- */

/* Take a, b and out. The shapes of a and b must fit out's. */
static void take_pair(sim_call *c, const aclTensor *a, const aclTensor *b, const aclTensor *out,
                      unsigned types)
{
    const sim_tensor *t = c->op.t;
    sim_take(c, "self", a, types), sim_take(c, "other", b, types), sim_take(c, "out", out, types);
    expect_types(c, {0, 1, 2}, "operands of one type");
    sim_expect(c, sim_fits(&t[0], &t[2]) && sim_fits(&t[1], &t[2]), "shapes that fit out's");
}

/* Take in and out, which have one type and one shape. */
static void take_two(sim_call *c, const aclTensor *in, const aclTensor *out)
{
    sim_take(c, "self", in, FLOATS), sim_take(c, "out", out, FLOATS);
    expect_types(c, {0, 1}, "one type");
    expect_shapes(c, {0, 1}, "one shape");
}

/* An operator that computes each element by itself. takes: takes and checks the arguments. */
#define EACH(name, what, takes, ...)                                                               \
    OPERATOR(name, __VA_ARGS__)                                                                    \
    {                                                                                              \
        BEGIN(name);                                                                               \
        takes;                                                                                     \
        c.op.function = what;                                                                      \
        return sim_phase1_end(&c, sim_each, 0);                                                    \
    }
#define TWO(in, out)           take_two(&c, in, out)
#define PAIR(a, b, out, types) take_pair(&c, a, b, out, types)
#define NUMBER(i, scalar)      c.op.number[i] = sim_take_scalar(&c, #scalar, scalar)

EACH(aclnnSqrt, SIM_SQRT, TWO(self, out), const aclTensor *self, aclTensor *out)
EACH(aclnnLog, SIM_LOG, TWO(self, out), const aclTensor *self, aclTensor *out)
EACH(aclnnCos, SIM_COS, TWO(self, out), const aclTensor *self, aclTensor *out)
EACH(aclnnSin, SIM_SIN, TWO(self, out), const aclTensor *self, aclTensor *out)
EACH(aclnnSilu, SIM_SILU, TWO(self, out), const aclTensor *self, aclTensor *out)
EACH(aclnnInplaceMul, SIM_MUL, PAIR(selfRef, other, selfRef, FLOATS), aclTensor *selfRef,
     const aclTensor *other)
EACH(aclnnInplaceDiv, SIM_DIV, PAIR(selfRef, other, selfRef, FLOATS), aclTensor *selfRef,
     const aclTensor *other)
EACH(aclnnMul, SIM_MUL, PAIR(self, other, out, FLOATS), const aclTensor *self,
     const aclTensor *other, aclTensor *out)
EACH(aclnnInplaceMuls, SIM_MULS, (TWO(selfRef, selfRef), NUMBER(0, other)), aclTensor *selfRef,
     const aclScalar *other)
EACH(aclnnInplaceDivs, SIM_DIVS, (TWO(selfRef, selfRef), NUMBER(0, other)), aclTensor *selfRef,
     const aclScalar *other)
EACH(aclnnMuls, SIM_MULS, (TWO(self, out), NUMBER(0, other)), const aclTensor *self,
     const aclScalar *other, aclTensor *out)
EACH(aclnnAdd, SIM_ADD, (PAIR(self, other, out, FLOATS | TYPE_I64), NUMBER(0, alpha)),
     const aclTensor *self, const aclTensor *other, const aclScalar *alpha, aclTensor *out)
EACH(aclnnInplaceAdd, SIM_ADD, (PAIR(selfRef, other, selfRef, FLOATS | TYPE_I64), NUMBER(0, alpha)),
     const aclTensor *selfRef, const aclTensor *other, const aclScalar *alpha)
EACH(aclnnInplaceAdds, SIM_ADDS, (TWO(selfRef, selfRef), NUMBER(0, other), NUMBER(1, alpha)),
     const aclTensor *selfRef, const aclScalar *other, const aclScalar *alpha)
EACH(aclnnInplaceZero, SIM_FILL, TAKE(selfRef, ANY_TYPE), aclTensor *selfRef)
EACH(aclnnInplaceFillScalar, SIM_FILL, (TAKE(selfRef, ANY_TYPE), NUMBER(0, value)),
     aclTensor *selfRef, const aclScalar *value)
EACH(aclnnGeluV2, SIM_GELU,
     (TWO(x, y),
      sim_expect(&c, approximate == 1, "approximate: 1, by tanh (the other it has not)")),
     const aclTensor *x, int64_t approximate, aclTensor *y)
EACH(aclnnGeluBackwardV2, SIM_GELU_GRAD,
     (PAIR(gradOutput, self, gradInput, FLOATS),
      sim_expect(&c, approximate != NULL && strcmp(approximate, "tanh") == 0,
                 "approximate: \"tanh\" (the other the stand-in has not)")),
     const aclTensor *gradOutput, const aclTensor *self, char *approximate, aclTensor *gradInput)
EACH(aclnnSiluBackward, SIM_SILU_GRAD,
     (PAIR(gradOutput, self, gradInput, FLOATS), expect_shapes(&c, {0, 1, 2}, "one shape")),
     const aclTensor *gradOutput, const aclTensor *self, aclTensor *gradInput)

OPERATOR(aclnnCast, const aclTensor *self, const aclDataType dtype, aclTensor *out)
{
    BEGIN(aclnnCast);
    TAKE(self, ANY_TYPE), TAKE(out, ANY_TYPE);
    sim_expect(&c, dtype == c.op.t[1].type, "an out of the type that is asked for");
    expect_shapes(&c, {0, 1}, "one shape");
    return sim_phase1_end(&c, sim_cast, 0);
}

OPERATOR(aclnnInplaceCopy, aclTensor *selfRef, const aclTensor *src)
{
    BEGIN(aclnnInplaceCopy);
    TAKE(src, ANY_TYPE), TAKE(selfRef, ANY_TYPE);
    sim_expect(&c, sim_fits(&c.op.t[0], &c.op.t[1]), "a src that fits selfRef");
    return sim_phase1_end(&c, sim_cast, 0);
}

OPERATOR(aclnnInplaceTriu, aclTensor *selfRef, int64_t diagonal)
{
    BEGIN(aclnnInplaceTriu);
    TAKE(selfRef, ANY_TYPE);
    sim_expect(&c, c.op.t[0].n_dims == 2, "a matrix");
    c.op.integer[0] = diagonal;
    return sim_phase1_end(&c, sim_triu, 0);
}

/* Whether t's elements are contiguous. */
static bool is_dense(const sim_tensor *t)
{
    int64_t elems = 1;
    for (int i = t->n_dims - 1; i >= 0; elems *= t->dim[i--])
        if (t->dim[i] > 1 && t->stride[i] != elems)
            return false;
    return true;
}

OPERATOR(aclnnRotaryPositionEmbedding, const aclTensor *x, const aclTensor *cos,
         const aclTensor *sin, int64_t mode, aclTensor *out)
{
    BEGIN(aclnnRotaryPositionEmbedding);
    const sim_tensor *t = c.op.t;
    TAKE(x, FLOATS), TAKE(cos, FLOATS), TAKE(sin, FLOATS), TAKE(out, FLOATS);
    expect_types(&c, {0, 1, 2, 3}, "one type");
    sim_expect(&c, mode == 0 || mode == 1, "a mode of 0 or 1: A2 has no other");
    sim_expect(&c,
               t[0].n_dims == 4 && t[0].dim[3] % 2 == 0 && t[0].dim[3] < 896 &&
                   t[0].dim[2] * (mode == 1 ? t[0].dim[0] : 1) < 1000 && t[0].dim[0] < 1000,
               "x [B,S,N,D] (others the stand-in has not), D even and below 896, B and N, or with "
               "mode 1 their product, below 1000");
    sim_expect(&c,
               t[1].n_dims == 4 && t[1].dim[0] == 1 && t[1].dim[1] == t[0].dim[1] &&
                   t[1].dim[2] == 1 && t[1].dim[3] == t[0].dim[3] && sim_same_shape(&t[1], &t[2]),
               "cos and sin [1,S,1,D]");
    sim_expect(&c, sim_same_shape(&t[0], &t[3]) && is_dense(&t[3]), "a dense out as x");
    sim_expect(&c, c.code != 0 || t[3].data != t[0].data, "an out beside x");
    c.op.integer[0] = mode;
    return sim_phase1_end(&c, sim_rotary, floats_of(&t[0]));
}

/* ---- sums and rows --------------------------------------------------------------------------- */

OPERATOR(aclnnReduceSum, const aclTensor *self, const aclIntArray *dims, bool keepDims,
         aclDataType dtype, aclTensor *out)
{
    BEGIN(aclnnReduceSum);
    TAKE(self, FLOATS), TAKE(out, FLOATS);
    sim_expect(&c, dtype == c.op.t[1].type, "an out of the type that is asked for");
    sim_expect(&c, dims != NULL && dims->n == 1 && dims->value[0] == 0 && !keepDims,
               "the first dimension (others the stand-in has not)");
    sim_expect(&c,
               c.op.t[1].n_dims == c.op.t[0].n_dims - 1 &&
                   sim_elems(&c.op.t[1]) * c.op.t[0].dim[0] == sim_elems(&c.op.t[0]),
               "an out that has the other dimensions");
    return sim_phase1_end(&c, sim_reduce_sum, floats_of(&c.op.t[1]));
}

/* The tensors with these numbers must be a matrix [R,C], a vector [C], where C is normalizedShape,
 * and two columns [R,1]. */
static void expect_rows_norm(sim_call *c, const aclIntArray *shape, int in, int weight, int mean)
{
    const sim_tensor *t = c->op.t;
    const int64_t row[] = {t[in].dim[1]}, column[] = {t[in].dim[0], 1};
    sim_expect(c, t[in].n_dims == 2, "a matrix (others the stand-in has not)");
    sim_expect(c, shape != NULL && shape->n == 1 && shape->value[0] == row[0],
               "a normalizedShape of input's last dimension");
    sim_expect(c, t[weight].n_dims == 1 && t[weight].dim[0] == row[0], "weight [C]");
    for (int i = mean; i < mean + 2; i++)
        sim_expect(c, t[i].n_dims == 2 && memcmp(t[i].dim, column, sizeof column) == 0,
                   "mean and rstd [R,1]");
}

OPERATOR(aclnnLayerNorm, const aclTensor *input, const aclIntArray *normalizedShape,
         const aclTensor *weight, const aclTensor *bias, double eps, aclTensor *out,
         aclTensor *mean, aclTensor *rstd)
{
    BEGIN(aclnnLayerNorm);
    TAKE(input, FLOATS), TAKE(weight, FLOATS), TAKE(bias, FLOATS), TAKE(out, FLOATS);
    TAKE(mean, TYPE_F32), TAKE(rstd, TYPE_F32);
    sim_expect(&c, one_type(&c, 0, 3) && one_type(&c, 1, 2), "one type");
    expect_rows_norm(&c, normalizedShape, 0, 1, 4);
    expect_shapes(&c, {1, 2}, "a bias as weight");
    expect_shapes(&c, {0, 3}, "an out as input");
    c.op.number[0] = eps;
    return sim_phase1_end(&c, sim_norm, 0);
}

OPERATOR(aclnnLayerNormBackward, const aclTensor *gradOut, const aclTensor *input,
         const aclIntArray *normalizedShape, const aclTensor *mean, const aclTensor *rstd,
         const aclTensor *weight, const aclTensor *bias, const aclBoolArray *outputMask,
         aclTensor *gradInputOut, aclTensor *gradWeightOut, aclTensor *gradBiasOut)
{
    BEGIN(aclnnLayerNormBackward);
    const sim_tensor *t = c.op.t;
    TAKE(gradOut, FLOATS), TAKE(input, FLOATS), TAKE(mean, TYPE_F32), TAKE(rstd, TYPE_F32);
    TAKE(weight, FLOATS), TAKE(gradInputOut, FLOATS), TAKE(gradWeightOut, FLOATS);
    TAKE(gradBiasOut, FLOATS), TAKE(bias, FLOATS | OPTIONAL);
    expect_types(&c, {0, 1, 5}, "one type");
    expect_types(&c, {4, 6, 7}, "gradients in weight's type");
    expect_rows_norm(&c, normalizedShape, 1, 4, 2);
    expect_shapes(&c, {4, 6, 7}, "gradients as weight");
    expect_shapes(&c, {0, 1, 5}, "gradients as input");
    sim_expect(&c,
               outputMask != NULL && outputMask->n == 3 && outputMask->value[0] &&
                   outputMask->value[1] && outputMask->value[2],
               "an outputMask of three that wants all (less the stand-in has not)");
    return sim_phase1_end(&c, sim_norm_grad, 2 * floats_of(&t[4]));
}

/* in and `out` have one type and shape. weight has their last dimension. rstd has the others, with
 * or without a last dimension of 1. */
static void expect_rms(sim_call *c, int in, int out, int weight, int rstd)
{
    const sim_tensor *t = c->op.t;
    const int64_t rows = c->code == 0 ? t[in].dim[0] : 0;
    expect_types(c, {in, out}, "y and x as one another");
    expect_shapes(c, {in, out}, "y and x as one another");
    sim_expect(c, one_type(c, in, weight) || t[weight].type == ACL_FLOAT, "gamma as x, or of fp32");
    sim_expect(c, t[in].n_dims == 2 && is_dense(&t[in]), "a dense matrix (others it has not)");
    sim_expect(c, t[weight].n_dims == 1 && t[weight].dim[0] == t[in].dim[1], "gamma [C]");
    sim_expect(c,
               t[rstd].dim[0] == rows &&
                   (t[rstd].n_dims == 1 || (t[rstd].n_dims == 2 && t[rstd].dim[1] == 1)),
               "rstd [R] or [R,1]");
    sim_expect(c, rows > 0, "rows: there is no empty norm");
}

OPERATOR(aclnnRmsNorm, const aclTensor *x, const aclTensor *gamma, double epsilon,
         const aclTensor *yOut, const aclTensor *rstdOut)
{
    BEGIN(aclnnRmsNorm);
    TAKE(x, FLOATS), TAKE(gamma, FLOATS), TAKE_NONE();
    TAKE(yOut, FLOATS), TAKE_NONE(), TAKE(rstdOut, TYPE_F32);
    expect_rms(&c, 0, 3, 1, 5);
    c.op.number[0] = epsilon;
    return sim_phase1_end(&c, sim_norm, 0);
}

OPERATOR(aclnnRmsNormGrad, const aclTensor *dy, const aclTensor *x, const aclTensor *rstd,
         const aclTensor *gamma, const aclTensor *dxOut, const aclTensor *dgammaOut)
{
    BEGIN(aclnnRmsNormGrad);
    TAKE(dy, FLOATS), TAKE(x, FLOATS), TAKE_NONE(), TAKE(rstd, TYPE_F32), TAKE(gamma, FLOATS);
    TAKE(dxOut, FLOATS), TAKE(dgammaOut, TYPE_F32), TAKE_NONE();
    expect_rms(&c, 1, 5, 4, 3);
    expect_types(&c, {0, 1}, "dy and x as one another");
    expect_shapes(&c, {0, 1}, "dy and x as one another");
    expect_shapes(&c, {4, 6}, "dgammaOut as gamma");
    return sim_phase1_end(&c, sim_norm_grad, floats_of(&c.op.t[6]));
}

static bool is_last(const sim_tensor *t, int64_t dim)
{
    return t->n_dims > 0 && (dim == -1 || dim == t->n_dims - 1);
}

OPERATOR(aclnnLogSoftmax, const aclTensor *self, int64_t dim, aclTensor *out)
{
    BEGIN(aclnnLogSoftmax);
    take_two(&c, self, out);
    sim_expect(&c, is_last(&c.op.t[0], dim), "the last dimension (others the stand-in has not)");
    return sim_phase1_end(&c, sim_log_softmax, floats_of(&c.op.t[0]));
}

OPERATOR(aclnnLogSoftmaxBackward, const aclTensor *gradOutput, const aclTensor *output, int64_t dim,
         aclTensor *out)
{
    BEGIN(aclnnLogSoftmaxBackward);
    const sim_tensor *t = c.op.t;
    take_pair(&c, gradOutput, output, out, FLOATS);
    sim_expect(&c, is_last(&t[1], dim), "the last dimension (others the stand-in has not)");
    expect_shapes(&c, {0, 1, 2}, "one shape");
    sim_expect(&c, c.code != 0 || t[2].data != t[1].data, "an out beside output");
    return sim_phase1_end(&c, sim_log_softmax_grad, 0);
}

/* Tensors `log_p` and the next two are [rows,classes], [rows] and [classes]; `each` is [rows]. */
static void expect_nll(sim_call *c, int log_p, int each, int64_t reduction, int64_t ignored)
{
    const sim_tensor *t = &c->op.t[log_p], *out = &c->op.t[each];
    sim_expect(c,
               t[0].n_dims == 2 && t[1].n_dims == 1 && t[2].n_dims == 1 &&
                   t[0].dim[0] == t[1].dim[0] && t[0].dim[1] == t[2].dim[0],
               "self [N,C], target [N] and weight [C]");
    sim_expect(c, reduction == 0, "a reduction of 0 (others the stand-in has not)");
    sim_expect(c, out->n_dims == 1 && out->dim[0] == t[0].dim[0], "an out and its gradient of [N]");
    sim_expect(c, sim_elems(&c->op.t[4]) == 1, "totalWeight [1]");
    c->op.integer[0] = ignored;
}

OPERATOR(aclnnNLLLoss, const aclTensor *self, const aclTensor *target, const aclTensor *weight,
         int64_t reduction, int64_t ignoreIndex, aclTensor *out, aclTensor *totalWeight)
{
    BEGIN(aclnnNLLLoss);
    TAKE(self, TYPE_F32), TAKE(target, INDICES | TYPE_U8), TAKE(weight, TYPE_F32);
    TAKE(out, TYPE_F32), TAKE(totalWeight, TYPE_F32);
    expect_nll(&c, 0, 3, reduction, ignoreIndex);
    return sim_phase1_end(&c, sim_nll, 0);
}

OPERATOR(aclnnNLLLossBackward, const aclTensor *gradOutput, const aclTensor *self,
         const aclTensor *target, const aclTensor *weight, int64_t reduction, int64_t ignoreIndex,
         const aclTensor *totalWeight, aclTensor *out)
{
    BEGIN(aclnnNLLLossBackward);
    TAKE(gradOutput, TYPE_F32), TAKE(self, TYPE_F32), TAKE(target, INDICES | TYPE_U8);
    TAKE(weight, TYPE_F32), TAKE(totalWeight, TYPE_F32), TAKE(out, TYPE_F32);
    expect_nll(&c, 1, 0, reduction, ignoreIndex);
    expect_shapes(&c, {1, 5}, "an out as self");
    return sim_phase1_end(&c, sim_nll_grad, 0);
}

/* ---- embedding ------------------------------------------------------------------------------- */

/* `rows` [.., C] are the rows of `table` [V,C] that `numbers` selects. */
static void expect_rows(sim_call *c, int rows, int numbers, int table)
{
    const sim_tensor *t = c->op.t;
    sim_expect(c, t[table].n_dims == 2 && t[numbers].n_dims == 1, "a table [V,C] and indices [N]");
    sim_expect(c,
               t[rows].n_dims == 2 && t[rows].dim[0] == t[numbers].dim[0] &&
                   t[rows].dim[1] == t[table].dim[1],
               "rows [N,C]");
    expect_types(c, {rows, table}, "one type");
}

OPERATOR(aclnnEmbedding, const aclTensor *weight, const aclTensor *indices, const aclTensor *out)
{
    BEGIN(aclnnEmbedding);
    TAKE(weight, FLOATS), TAKE(indices, INDICES), TAKE(out, FLOATS);
    expect_rows(&c, 2, 1, 0);
    return sim_phase1_end(&c, sim_embedding, 0);
}

OPERATOR(aclnnEmbeddingDenseBackward, const aclTensor *grad, const aclTensor *indices,
         uint64_t numWeights, uint64_t paddingIdx, bool scaleGradByFreq, const aclTensor *out)
{
    BEGIN(aclnnEmbeddingDenseBackward);
    TAKE(grad, FLOATS), TAKE(indices, INDICES), TAKE(out, FLOATS);
    expect_rows(&c, 0, 1, 2);
    sim_expect(&c, c.code != 0 || (uint64_t)c.op.t[2].dim[0] == numWeights, "an out of numWeights");
    sim_expect(&c, !scaleGradByFreq && paddingIdx == UINT64_MAX,
               "neither scaleGradByFreq nor padding (the stand-in has none)");
    return sim_phase1_end(&c, sim_embedding_grad, floats_of(&c.op.t[2]));
}

/* ---- attention ------------------------------------------------------------------------------- */

/* What the forward and the backward call have in common. */
typedef struct attention_call {
    double scale;
    int64_t before, heads, sparse_mode;
    const char *layout;
} attention_call;

/* Refuse the options that the stand-in lacks. */
static void expect_plain(sim_call *c, const aclTensor *positions, const aclTensor *dropout,
                         const aclTensor *padding, const aclIntArray *prefix, double keep)
{
    sim_expect(c, !positions && !dropout && !padding && !prefix && keep == 1.0,
               "no positions, dropout, padding or prefix (the stand-in has none)");
}

/* Whether t has the shape of out and of its gradient: q's shape, with heads as wide as v's. */
static bool as_out(const sim_call *c, const sim_tensor *t)
{
    const sim_tensor *q = &c->op.t[0], *k = &c->op.t[1], *v = &c->op.t[2];
    return t->n_dims == 3 && t->dim[0] == q->dim[0] && t->dim[1] == q->dim[1] &&
           t->dim[2] * k->dim[2] == q->dim[2] * v->dim[2];
}

/* q, k and v are tensors 0, 1 and 2; mask, max and sum begin at `mask`. */
static void expect_attention(sim_call *c, const attention_call *x, int mask)
{
    const sim_tensor *q = &c->op.t[0], *k = &c->op.t[1], *v = &c->op.t[2], *m = &c->op.t[mask];
    const int64_t T = q->dim[1], heads = x->heads > 0 ? x->heads : 1;
    const int64_t D = q->dim[2] / heads, stats[4] = {q->dim[0], heads, T, 8};
    sim_expect(c, x->layout != NULL && strcmp(x->layout, "BSH") == 0,
               "the layout BSH (others the stand-in has not)");
    expect_types(c, {0, 1, 2}, "q, k and v of one type");
    sim_expect(c,
               q->n_dims == 3 && k->n_dims == 3 && v->n_dims == 3 && q->dim[0] == k->dim[0] &&
                   q->dim[0] == v->dim[0] && T == k->dim[1] && T == v->dim[1],
               "q [B,S,H], k and v [B,S,KV]");
    sim_expect(c,
               x->heads > 0 && D > 0 && D <= 768 && q->dim[2] % heads == 0 && k->dim[2] % D == 0 &&
                   k->dim[2] > 0 && heads % (k->dim[2] / D) == 0,
               "whole heads of 1 ... 768 elements, as many for each of k's");
    sim_expect(c,
               c->code != 0 ||
                   (v->dim[2] > 0 && v->dim[2] <= k->dim[2] && v->dim[2] % (k->dim[2] / D) == 0),
               "heads of v as k's, no wider");
    sim_expect(c, m->n_dims == 2 && m->dim[0] == T && m->dim[1] == T, "a mask [S,S]");
    sim_expect(c, x->sparse_mode == 0, "sparseMode 0 (others the stand-in has not)");
    sim_expect(c, x->before >= T - 1, "preTokens that agree with a causal mask");
    for (int i = 1; i <= 2; i++)
        sim_expect(c, m[i].n_dims == 4 && memcmp(m[i].dim, stats, sizeof stats) == 0,
                   "softmaxMax and softmaxSum [B,N,S,8]");
    c->op.number[0] = x->scale;
    c->op.integer[0] = x->heads;
}

OPERATOR(aclnnFlashAttentionScore, const aclTensor *query, const aclTensor *key,
         const aclTensor *value, const aclTensor *realShiftOptional,
         const aclTensor *dropMaskOptional, const aclTensor *paddingMaskOptional,
         const aclTensor *attenMaskOptional, const aclIntArray *prefixOptional, double scaleValue,
         double keepProb, int64_t preTokens, int64_t nextTokens, int64_t headNum, char *inputLayout,
         int64_t innerPrecise, int64_t sparseMode, const aclTensor *softmaxMaxOut,
         const aclTensor *softmaxSumOut, const aclTensor *softmaxOutOut,
         const aclTensor *attentionOutOut)
{
    BEGIN(aclnnFlashAttentionScore);
    const attention_call x = {scaleValue, preTokens, headNum, sparseMode, inputLayout};
    (void)innerPrecise, (void)nextTokens;
    TAKE(query, FLOATS), TAKE(key, FLOATS), TAKE(value, FLOATS);
    TAKE(attenMaskOptional, TYPE_U8), TAKE(softmaxMaxOut, TYPE_F32);
    TAKE(softmaxSumOut, TYPE_F32), TAKE(attentionOutOut, FLOATS), TAKE(softmaxOutOut, FLOATS);
    expect_plain(&c, realShiftOptional, dropMaskOptional, paddingMaskOptional, prefixOptional,
                 keepProb);
    expect_attention(&c, &x, 3);
    sim_expect(&c, one_type(&c, 0, 6) && as_out(&c, &c.op.t[6]), "an out as query, by v's width");
    return sim_phase1_end(&c, sim_attention, floats_of(&c.op.t[6]));
}

OPERATOR(aclnnFlashAttentionScoreGrad, const aclTensor *query, const aclTensor *keyIn,
         const aclTensor *value, const aclTensor *dy, const aclTensor *pseShiftOptional,
         const aclTensor *dropMaskOptional, const aclTensor *paddingMaskOptional,
         const aclTensor *attenMaskOptional, const aclTensor *softmaxMax,
         const aclTensor *softmaxSum, const aclTensor *softmaxInOptional,
         const aclTensor *attentionIn, const aclIntArray *prefixOptional, double scaleValue,
         double keepProb, int64_t preTokens, int64_t nextTokens, int64_t headNum, char *inputLayout,
         int64_t innerPrecise, int64_t sparseMode, const aclTensor *dqOut, const aclTensor *dkOut,
         const aclTensor *dvOut, const aclTensor *dpseOut)
{
    BEGIN(aclnnFlashAttentionScoreGrad);
    const attention_call x = {scaleValue, preTokens, headNum, sparseMode, inputLayout};
    const sim_tensor *t = c.op.t;
    (void)innerPrecise, (void)nextTokens;
    TAKE(query, FLOATS), TAKE(keyIn, FLOATS), TAKE(value, FLOATS), TAKE(dy, FLOATS);
    TAKE(attenMaskOptional, TYPE_U8), TAKE(softmaxMax, TYPE_F32);
    TAKE(softmaxSum, TYPE_F32), TAKE(attentionIn, FLOATS);
    TAKE(dqOut, FLOATS), TAKE(dkOut, FLOATS), TAKE(dvOut, FLOATS);
    expect_plain(&c, pseShiftOptional, dropMaskOptional, paddingMaskOptional, prefixOptional,
                 keepProb);
    expect_attention(&c, &x, 4);
    expect_types(&c, {0, 3, 7, 8, 9, 10}, "gradients in query's type");
    sim_expect(&c, as_out(&c, &t[3]) && as_out(&c, &t[7]),
               "dy and attentionIn as query by v's width");
    for (int i = 0; i < 3; i++)
        expect_shapes(&c, {i, 8 + i}, "dqOut, dkOut and dvOut as query, keyIn and value");
    sim_expect(&c, softmaxInOptional == NULL && dpseOut == NULL, "no softmaxIn, no dpseOut");
    return sim_phase1_end(&c, sim_attention_grad,
                          floats_of(&t[0]) + floats_of(&t[1]) + floats_of(&t[2]));
}
