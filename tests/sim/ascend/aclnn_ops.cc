/* aclnn_ops.cc -- the operators of aclnn for the stand-in: what each takes, as CANN's API reference
 * says for Atlas A2. Operands of two types, for which aclnn has rules of promotion, are refused. */
#include "tests/sim/ascend/aclnn_phases.h"
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

/* ---- products -------------------------------------------------------------------------------- */

/* Bits of a fraction that [CANN cubeMathType] gives away: 1 and 3 multiply fp32 as HF32, which has
 * 11 of 23; 0 keeps all. */
static int64_t cut_of(const sim_call *c, int8_t cubeMathType)
{
    return c->op.t[0].type == ACL_FLOAT && (cubeMathType == 1 || cubeMathType == 3) ? 12 : 0;
}

/* Tensors 0, 1 and 2 are matrices of one type that fit each other. */
static void expect_product(sim_call *c, int8_t cubeMathType)
{
    const sim_tensor *t = c->op.t;
    sim_expect(c, t[0].n_dims == 2 && t[1].n_dims == 2 && t[2].n_dims == 2, "matrices");
    sim_expect(c, one_type(c, 0, 1) && one_type(c, 0, 2), "one type: A2 mixes none");
    sim_expect(
        c, t[0].dim[1] == t[1].dim[0] && t[2].dim[0] == t[0].dim[0] && t[2].dim[1] == t[1].dim[1],
        "shapes [m,k] [k,n] and [m,n]");
    sim_expect(c, cubeMathType >= 0 && cubeMathType <= 4, "a cubeMathType of 0 ... 4");
    c->op.integer[0] = cut_of(c, cubeMathType);
}

aclnnStatus aclnnMmGetWorkspaceSize(const aclTensor *self, const aclTensor *mat2, aclTensor *out,
                                    int8_t cubeMathType, ENDS_IN)
{
    BEGIN(aclnnMm);
    sim_take(&c, "self", self, FLOATS), sim_take(&c, "mat2", mat2, FLOATS);
    sim_take(&c, "out", out, FLOATS), sim_take(&c, "", NULL, OPTIONAL);
    expect_product(&c, cubeMathType);
    c.op.number[0] = 1.0;
    return sim_phase1_end(&c, sim_mm, floats_of(&c.op.t[2]));
}
PHASE2(aclnnMm)

aclnnStatus aclnnInplaceAddmmGetWorkspaceSize(const aclTensor *selfRef, const aclTensor *mat1,
                                              const aclTensor *mat2, const aclScalar *beta,
                                              const aclScalar *alpha, int8_t cubeMathType, ENDS_IN)
{
    BEGIN(aclnnInplaceAddmm);
    sim_take(&c, "mat1", mat1, FLOATS), sim_take(&c, "mat2", mat2, FLOATS);
    sim_take(&c, "selfRef", selfRef, FLOATS), sim_take(&c, "selfRef", selfRef, FLOATS);
    c.op.number[0] = sim_take_scalar(&c, "alpha", alpha);
    c.op.number[1] = sim_take_scalar(&c, "beta", beta);
    expect_product(&c, cubeMathType);
    return sim_phase1_end(&c, sim_mm, floats_of(&c.op.t[2]));
}
PHASE2(aclnnInplaceAddmm)

/* ---- element by element ---------------------------------------------------------------------- */

static aclnnStatus pair_end(sim_call *c, sim_kernel kernel)
{
    const sim_tensor *t = c->op.t;
    sim_expect(c, one_type(c, 0, 1) && one_type(c, 0, 2), "operands of one type");
    sim_expect(c, sim_fits(&t[0], &t[2]) && sim_fits(&t[1], &t[2]), "shapes that fit out's");
    return sim_phase1_end(c, kernel, 0);
}

static void take_pair(sim_call *c, const aclTensor *a, const aclTensor *b, const aclTensor *out,
                      unsigned types)
{
    sim_take(c, "self", a, types), sim_take(c, "other", b, types), sim_take(c, "out", out, types);
}

aclnnStatus aclnnAddGetWorkspaceSize(const aclTensor *self, const aclTensor *other,
                                     const aclScalar *alpha, aclTensor *out, ENDS_IN)
{
    BEGIN(aclnnAdd);
    take_pair(&c, self, other, out, FLOATS | TYPE_I64);
    c.op.number[0] = sim_take_scalar(&c, "alpha", alpha);
    return pair_end(&c, sim_add);
}
PHASE2(aclnnAdd)

aclnnStatus aclnnInplaceAddGetWorkspaceSize(const aclTensor *selfRef, const aclTensor *other,
                                            const aclScalar *alpha, ENDS_IN)
{
    BEGIN(aclnnInplaceAdd);
    take_pair(&c, selfRef, other, selfRef, FLOATS | TYPE_I64);
    c.op.number[0] = sim_take_scalar(&c, "alpha", alpha);
    return pair_end(&c, sim_add);
}
PHASE2(aclnnInplaceAdd)

aclnnStatus aclnnMulGetWorkspaceSize(const aclTensor *self, const aclTensor *other, aclTensor *out,
                                     ENDS_IN)
{
    BEGIN(aclnnMul);
    take_pair(&c, self, other, out, FLOATS);
    return pair_end(&c, sim_mul);
}
PHASE2(aclnnMul)

aclnnStatus aclnnInplaceMulGetWorkspaceSize(aclTensor *selfRef, const aclTensor *other, ENDS_IN)
{
    BEGIN(aclnnInplaceMul);
    take_pair(&c, selfRef, other, selfRef, FLOATS);
    return pair_end(&c, sim_mul);
}
PHASE2(aclnnInplaceMul)

aclnnStatus aclnnInplaceDivGetWorkspaceSize(aclTensor *selfRef, const aclTensor *other, ENDS_IN)
{
    BEGIN(aclnnInplaceDiv);
    take_pair(&c, selfRef, other, selfRef, FLOATS);
    return pair_end(&c, sim_div);
}
PHASE2(aclnnInplaceDiv)

/* in, out of one type and shape. */
static void take_two(sim_call *c, const aclTensor *in, const aclTensor *out)
{
    sim_take(c, "self", in, FLOATS), sim_take(c, "out", out, FLOATS);
    sim_expect(c, one_type(c, 0, 1), "one type");
    sim_expect(c, sim_same_shape(&c->op.t[0], &c->op.t[1]), "one shape");
}

aclnnStatus aclnnMulsGetWorkspaceSize(const aclTensor *self, const aclScalar *other, aclTensor *out,
                                      ENDS_IN)
{
    BEGIN(aclnnMuls);
    take_two(&c, self, out);
    c.op.number[0] = sim_take_scalar(&c, "other", other);
    return sim_phase1_end(&c, sim_muls, 0);
}
PHASE2(aclnnMuls)

aclnnStatus aclnnInplaceMulsGetWorkspaceSize(aclTensor *selfRef, const aclScalar *other, ENDS_IN)
{
    BEGIN(aclnnInplaceMuls);
    take_two(&c, selfRef, selfRef);
    c.op.number[0] = sim_take_scalar(&c, "other", other);
    return sim_phase1_end(&c, sim_muls, 0);
}
PHASE2(aclnnInplaceMuls)

aclnnStatus aclnnInplaceDivsGetWorkspaceSize(aclTensor *selfRef, const aclScalar *other, ENDS_IN)
{
    BEGIN(aclnnInplaceDivs);
    take_two(&c, selfRef, selfRef);
    c.op.number[0] = sim_take_scalar(&c, "other", other);
    return sim_phase1_end(&c, sim_divs, 0);
}
PHASE2(aclnnInplaceDivs)

aclnnStatus aclnnInplaceAddsGetWorkspaceSize(const aclTensor *selfRef, const aclScalar *other,
                                             const aclScalar *alpha, ENDS_IN)
{
    BEGIN(aclnnInplaceAdds);
    take_two(&c, selfRef, selfRef);
    c.op.number[0] = sim_take_scalar(&c, "other", other);
    c.op.number[1] = sim_take_scalar(&c, "alpha", alpha);
    return sim_phase1_end(&c, sim_adds, 0);
}
PHASE2(aclnnInplaceAdds)

aclnnStatus aclnnSqrtGetWorkspaceSize(const aclTensor *self, aclTensor *out, ENDS_IN)
{
    BEGIN(aclnnSqrt);
    take_two(&c, self, out);
    return sim_phase1_end(&c, sim_sqrt, 0);
}
PHASE2(aclnnSqrt)

aclnnStatus aclnnLogGetWorkspaceSize(const aclTensor *self, aclTensor *out, ENDS_IN)
{
    BEGIN(aclnnLog);
    take_two(&c, self, out);
    return sim_phase1_end(&c, sim_log, 0);
}
PHASE2(aclnnLog)

aclnnStatus aclnnCosGetWorkspaceSize(const aclTensor *input, aclTensor *out, ENDS_IN)
{
    BEGIN(aclnnCos);
    take_two(&c, input, out);
    return sim_phase1_end(&c, sim_cos, 0);
}
PHASE2(aclnnCos)

aclnnStatus aclnnSinGetWorkspaceSize(const aclTensor *input, aclTensor *out, ENDS_IN)
{
    BEGIN(aclnnSin);
    take_two(&c, input, out);
    return sim_phase1_end(&c, sim_sin, 0);
}
PHASE2(aclnnSin)

aclnnStatus aclnnCastGetWorkspaceSize(const aclTensor *self, const aclDataType dtype,
                                      aclTensor *out, ENDS_IN)
{
    BEGIN(aclnnCast);
    sim_take(&c, "self", self, ANY_TYPE), sim_take(&c, "out", out, ANY_TYPE);
    sim_expect(&c, dtype == c.op.t[1].type, "an out of the type that is asked for");
    sim_expect(&c, sim_same_shape(&c.op.t[0], &c.op.t[1]), "one shape");
    return sim_phase1_end(&c, sim_cast, 0);
}
PHASE2(aclnnCast)

aclnnStatus aclnnInplaceCopyGetWorkspaceSize(aclTensor *selfRef, const aclTensor *src, ENDS_IN)
{
    BEGIN(aclnnInplaceCopy);
    sim_take(&c, "src", src, ANY_TYPE), sim_take(&c, "selfRef", selfRef, ANY_TYPE);
    sim_expect(&c, sim_fits(&c.op.t[0], &c.op.t[1]), "a src that fits selfRef");
    return sim_phase1_end(&c, sim_cast, 0);
}
PHASE2(aclnnInplaceCopy)

aclnnStatus aclnnInplaceZeroGetWorkspaceSize(aclTensor *selfRef, ENDS_IN)
{
    BEGIN(aclnnInplaceZero);
    sim_take(&c, "selfRef", selfRef, ANY_TYPE);
    return sim_phase1_end(&c, sim_fill_all, 0);
}
PHASE2(aclnnInplaceZero)

aclnnStatus aclnnInplaceFillScalarGetWorkspaceSize(aclTensor *selfRef, const aclScalar *value,
                                                   ENDS_IN)
{
    BEGIN(aclnnInplaceFillScalar);
    sim_take(&c, "selfRef", selfRef, ANY_TYPE);
    c.op.number[0] = sim_take_scalar(&c, "value", value);
    return sim_phase1_end(&c, sim_fill_all, 0);
}
PHASE2(aclnnInplaceFillScalar)

aclnnStatus aclnnInplaceTriuGetWorkspaceSize(aclTensor *selfRef, int64_t diagonal, ENDS_IN)
{
    BEGIN(aclnnInplaceTriu);
    sim_take(&c, "selfRef", selfRef, ANY_TYPE);
    sim_expect(&c, c.op.t[0].n_dims == 2, "a matrix");
    c.op.integer[0] = diagonal;
    return sim_phase1_end(&c, sim_triu, 0);
}
PHASE2(aclnnInplaceTriu)

aclnnStatus aclnnGeluV2GetWorkspaceSize(const aclTensor *x, int64_t approximate, aclTensor *y,
                                        ENDS_IN)
{
    BEGIN(aclnnGeluV2);
    take_two(&c, x, y);
    sim_expect(&c, approximate == 0 || approximate == 1, "approximate: 0 or 1");
    c.op.integer[0] = approximate;
    return sim_phase1_end(&c, sim_gelu, 0);
}
PHASE2(aclnnGeluV2)

aclnnStatus aclnnGeluBackwardV2GetWorkspaceSize(const aclTensor *gradOutput, const aclTensor *self,
                                                char *approximate, aclTensor *gradInput, ENDS_IN)
{
    BEGIN(aclnnGeluBackwardV2);
    take_pair(&c, gradOutput, self, gradInput, FLOATS);
    const bool by_tanh = approximate != NULL && strcmp(approximate, "tanh") == 0;
    sim_expect(&c, by_tanh || (approximate != NULL && strcmp(approximate, "none") == 0),
               "approximate: \"none\" or \"tanh\"");
    c.op.integer[0] = by_tanh;
    return pair_end(&c, sim_gelu_grad);
}
PHASE2(aclnnGeluBackwardV2)

aclnnStatus aclnnSiluGetWorkspaceSize(const aclTensor *self, aclTensor *out, ENDS_IN)
{
    BEGIN(aclnnSilu);
    take_two(&c, self, out);
    return sim_phase1_end(&c, sim_silu, 0);
}
PHASE2(aclnnSilu)

aclnnStatus aclnnSiluBackwardGetWorkspaceSize(const aclTensor *gradOutput, const aclTensor *self,
                                              aclTensor *gradInput, ENDS_IN)
{
    BEGIN(aclnnSiluBackward);
    take_pair(&c, gradOutput, self, gradInput, FLOATS);
    sim_expect(&c, sim_same_shape(&c.op.t[0], &c.op.t[1]) && sim_same_shape(&c.op.t[0], &c.op.t[2]),
               "one shape");
    return pair_end(&c, sim_silu_grad);
}
PHASE2(aclnnSiluBackward)

/* Whether t's elements stand one behind the other. */
static bool is_dense(const sim_tensor *t)
{
    int64_t elems = 1;
    for (int i = t->n_dims - 1; i >= 0; elems *= t->dim[i--])
        if (t->dim[i] > 1 && t->stride[i] != elems)
            return false;
    return true;
}

aclnnStatus aclnnRotaryPositionEmbeddingGetWorkspaceSize(const aclTensor *x, const aclTensor *cos,
                                                         const aclTensor *sin, int64_t mode,
                                                         aclTensor *out, ENDS_IN)
{
    BEGIN(aclnnRotaryPositionEmbedding);
    const sim_tensor *t = c.op.t;
    sim_take(&c, "x", x, FLOATS), sim_take(&c, "cos", cos, FLOATS);
    sim_take(&c, "sin", sin, FLOATS), sim_take(&c, "out", out, FLOATS);
    sim_expect(&c, one_type(&c, 0, 1) && one_type(&c, 0, 2) && one_type(&c, 0, 3), "one type");
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
PHASE2(aclnnRotaryPositionEmbedding)

/* ---- sums and rows --------------------------------------------------------------------------- */

aclnnStatus aclnnReduceSumGetWorkspaceSize(const aclTensor *self, const aclIntArray *dims,
                                           bool keepDims, aclDataType dtype, aclTensor *out,
                                           ENDS_IN)
{
    BEGIN(aclnnReduceSum);
    sim_take(&c, "self", self, FLOATS), sim_take(&c, "out", out, FLOATS);
    const bool one_dim =
        dims != NULL && dims->n == 1 && dims->value[0] >= 0 && dims->value[0] < c.op.t[0].n_dims;
    sim_expect(&c, dtype == c.op.t[1].type, "an out of the type that is asked for");
    sim_expect(&c, one_dim && !keepDims, "one dimension of self (more the stand-in has not)");
    c.op.integer[0] = one_dim ? dims->value[0] : 0;
    const int64_t summed = c.code == 0 ? c.op.t[0].dim[c.op.integer[0]] : 1;
    sim_expect(&c,
               c.op.t[1].n_dims == c.op.t[0].n_dims - 1 &&
                   sim_elems(&c.op.t[1]) * summed == sim_elems(&c.op.t[0]),
               "an out that has the other dimensions");
    return sim_phase1_end(&c, sim_reduce_sum, floats_of(&c.op.t[1]));
}
PHASE2(aclnnReduceSum)

/* Whether shape is t's last dimension and `row` an array of it. */
static bool is_row_of(const sim_tensor *t, const aclIntArray *shape, const sim_tensor *row)
{
    return shape != NULL && shape->n == 1 && t->n_dims > 0 &&
           t->dim[t->n_dims - 1] == shape->value[0] && row->n_dims == 1 &&
           row->dim[0] == shape->value[0];
}

/* Whether stats is t's shape but for a last dimension of 1. */
static bool is_column_of(const sim_tensor *t, const sim_tensor *stats)
{
    return stats->n_dims == t->n_dims && stats->dim[t->n_dims - 1] == 1 && sim_fits(stats, t) &&
           (t->n_dims < 2 || stats->dim[0] == t->dim[0]);
}

aclnnStatus aclnnLayerNormGetWorkspaceSize(const aclTensor *input,
                                           const aclIntArray *normalizedShape,
                                           const aclTensor *weightOptional,
                                           const aclTensor *biasOptional, double eps,
                                           aclTensor *out, aclTensor *meanOutOptional,
                                           aclTensor *rstdOutOptional, ENDS_IN)
{
    BEGIN(aclnnLayerNorm);
    const sim_tensor *t = c.op.t;
    sim_take(&c, "input", input, FLOATS), sim_take(&c, "weight", weightOptional, FLOATS);
    sim_take(&c, "bias", biasOptional, FLOATS), sim_take(&c, "out", out, FLOATS);
    sim_take(&c, "mean", meanOutOptional, TYPE_F32);
    sim_take(&c, "rstd", rstdOutOptional, TYPE_F32);
    sim_expect(&c, one_type(&c, 0, 3) && one_type(&c, 1, 2), "one type");
    sim_expect(&c, is_row_of(&t[0], normalizedShape, &t[1]) && sim_same_shape(&t[1], &t[2]),
               "weight and bias of normalizedShape, input's last dimension");
    sim_expect(&c,
               sim_same_shape(&t[0], &t[3]) && is_column_of(&t[0], &t[4]) &&
                   sim_same_shape(&t[4], &t[5]),
               "an out as input; mean and rstd as input, with a last dimension of 1");
    c.op.number[0] = eps;
    return sim_phase1_end(&c, sim_layernorm, 0);
}
PHASE2(aclnnLayerNorm)

aclnnStatus aclnnLayerNormBackwardGetWorkspaceSize(
    const aclTensor *gradOut, const aclTensor *input, const aclIntArray *normalizedShape,
    const aclTensor *mean, const aclTensor *rstd, const aclTensor *weightOptional,
    const aclTensor *biasOptional, const aclBoolArray *outputMask, aclTensor *gradInputOut,
    aclTensor *gradWeightOut, aclTensor *gradBiasOut, ENDS_IN)
{
    BEGIN(aclnnLayerNormBackward);
    const sim_tensor *t = c.op.t;
    sim_take(&c, "gradOut", gradOut, FLOATS), sim_take(&c, "input", input, FLOATS);
    sim_take(&c, "mean", mean, TYPE_F32), sim_take(&c, "rstd", rstd, TYPE_F32);
    sim_take(&c, "weight", weightOptional, FLOATS);
    sim_take(&c, "gradInputOut", gradInputOut, FLOATS);
    sim_take(&c, "gradWeightOut", gradWeightOut, FLOATS);
    sim_take(&c, "gradBiasOut", gradBiasOut, FLOATS);
    sim_take(&c, "bias", biasOptional, FLOATS | OPTIONAL);
    sim_expect(&c, one_type(&c, 0, 1) && one_type(&c, 0, 5), "one type");
    sim_expect(&c, one_type(&c, 4, 6) && one_type(&c, 4, 7), "gradients in weight's type");
    sim_expect(&c,
               is_row_of(&t[1], normalizedShape, &t[4]) && sim_same_shape(&t[4], &t[6]) &&
                   sim_same_shape(&t[4], &t[7]),
               "weight and its gradients of normalizedShape, input's last dimension");
    sim_expect(&c,
               sim_same_shape(&t[0], &t[1]) && sim_same_shape(&t[0], &t[5]) &&
                   is_column_of(&t[1], &t[2]) && sim_same_shape(&t[2], &t[3]),
               "gradients as input; mean and rstd as input, with a last dimension of 1");
    sim_expect(&c,
               outputMask != NULL && outputMask->n == 3 && outputMask->value[0] &&
                   outputMask->value[1] && outputMask->value[2],
               "an outputMask of three that wants all (less the stand-in has not)");
    return sim_phase1_end(&c, sim_layernorm_grad, 2 * floats_of(&t[4]));
}
PHASE2(aclnnLayerNormBackward)

/* in and `out` of one type and shape, weight their last dimension, rstd the others: with or without
 * a last dimension of 1. */
static void expect_rms(sim_call *c, int in, int out, int weight, int rstd)
{
    const sim_tensor *t = c->op.t;
    const int64_t rows = c->code == 0 ? t[in].dim[0] : 0;
    sim_expect(c, one_type(c, in, out) && sim_same_shape(&t[in], &t[out]),
               "y and x as one another");
    sim_expect(c, one_type(c, in, weight) || t[weight].type == ACL_FLOAT, "gamma as x, or of fp32");
    sim_expect(c, t[in].n_dims == 2 && is_dense(&t[in]), "a dense matrix (others it has not)");
    sim_expect(c, t[weight].n_dims == 1 && t[weight].dim[0] == t[in].dim[1], "gamma [C]");
    sim_expect(c,
               t[rstd].dim[0] == rows &&
                   (t[rstd].n_dims == 1 || (t[rstd].n_dims == 2 && t[rstd].dim[1] == 1)),
               "rstd [R] or [R,1]");
    sim_expect(c, rows > 0, "rows: there is no empty norm");
}

aclnnStatus aclnnRmsNormGetWorkspaceSize(const aclTensor *x, const aclTensor *gamma, double epsilon,
                                         const aclTensor *yOut, const aclTensor *rstdOut, ENDS_IN)
{
    BEGIN(aclnnRmsNorm);
    sim_take(&c, "x", x, FLOATS), sim_take(&c, "gamma", gamma, FLOATS);
    sim_take(&c, "yOut", yOut, FLOATS), sim_take(&c, "rstdOut", rstdOut, TYPE_F32);
    expect_rms(&c, 0, 2, 1, 3);
    c.op.number[0] = epsilon;
    return sim_phase1_end(&c, sim_rmsnorm, 0);
}
PHASE2(aclnnRmsNorm)

aclnnStatus aclnnRmsNormGradGetWorkspaceSize(const aclTensor *dy, const aclTensor *x,
                                             const aclTensor *rstd, const aclTensor *gamma,
                                             const aclTensor *dxOut, const aclTensor *dgammaOut,
                                             ENDS_IN)
{
    BEGIN(aclnnRmsNormGrad);
    const sim_tensor *t = c.op.t;
    sim_take(&c, "dy", dy, FLOATS), sim_take(&c, "x", x, FLOATS);
    sim_take(&c, "rstd", rstd, TYPE_F32), sim_take(&c, "gamma", gamma, FLOATS);
    sim_take(&c, "dxOut", dxOut, FLOATS), sim_take(&c, "dgammaOut", dgammaOut, TYPE_F32);
    expect_rms(&c, 1, 4, 3, 2);
    sim_expect(&c, one_type(&c, 0, 1) && sim_same_shape(&t[0], &t[1]), "dy and x as one another");
    sim_expect(&c, sim_same_shape(&t[3], &t[5]), "dgammaOut as gamma");
    return sim_phase1_end(&c, sim_rmsnorm_grad, floats_of(&t[5]));
}
PHASE2(aclnnRmsNormGrad)

static bool is_last(const sim_tensor *t, int64_t dim)
{
    return t->n_dims > 0 && (dim == -1 || dim == t->n_dims - 1);
}

aclnnStatus aclnnLogSoftmaxGetWorkspaceSize(const aclTensor *self, int64_t dim, aclTensor *out,
                                            ENDS_IN)
{
    BEGIN(aclnnLogSoftmax);
    take_two(&c, self, out);
    sim_expect(&c, is_last(&c.op.t[0], dim), "the last dimension (others the stand-in has not)");
    return sim_phase1_end(&c, sim_log_softmax, floats_of(&c.op.t[0]));
}
PHASE2(aclnnLogSoftmax)

aclnnStatus aclnnLogSoftmaxBackwardGetWorkspaceSize(const aclTensor *gradOutput,
                                                    const aclTensor *output, int64_t dim,
                                                    aclTensor *out, ENDS_IN)
{
    BEGIN(aclnnLogSoftmaxBackward);
    const sim_tensor *t = c.op.t;
    take_pair(&c, gradOutput, output, out, FLOATS);
    sim_expect(&c, is_last(&t[1], dim), "the last dimension (others the stand-in has not)");
    sim_expect(&c, sim_same_shape(&t[0], &t[1]) && sim_same_shape(&t[0], &t[2]), "one shape");
    sim_expect(&c, c.code != 0 || t[2].data != t[1].data, "an out beside output");
    return pair_end(&c, sim_log_softmax_grad);
}
PHASE2(aclnnLogSoftmaxBackward)

/* Tensors `log_p` and the next two: [rows,classes], [rows], [classes]. */
static void expect_nll(sim_call *c, int log_p, int64_t reduction)
{
    const sim_tensor *t = &c->op.t[log_p];
    sim_expect(c,
               t[0].n_dims == 2 && t[1].n_dims == 1 && t[2].n_dims == 1 &&
                   t[0].dim[0] == t[1].dim[0] && t[0].dim[1] == t[2].dim[0],
               "self [N,C], target [N] and weight [C]");
    sim_expect(c, reduction >= 0 && reduction <= 2, "a reduction of 0, 1 or 2");
    c->op.integer[0] = reduction;
}

aclnnStatus aclnnNLLLossGetWorkspaceSize(const aclTensor *self, const aclTensor *target,
                                         const aclTensor *weight, int64_t reduction,
                                         int64_t ignoreIndex, aclTensor *out,
                                         aclTensor *totalWeightOut, ENDS_IN)
{
    BEGIN(aclnnNLLLoss);
    sim_take(&c, "self", self, TYPE_F32), sim_take(&c, "target", target, INDICES | TYPE_U8);
    sim_take(&c, "weight", weight, TYPE_F32), sim_take(&c, "out", out, TYPE_F32);
    sim_take(&c, "totalWeightOut", totalWeightOut, TYPE_F32);
    expect_nll(&c, 0, reduction);
    sim_expect(&c,
               sim_elems(&c.op.t[3]) == (reduction == 0 ? c.op.t[0].dim[0] : 1) &&
                   sim_elems(&c.op.t[4]) == 1,
               "an out of [N] without a reduction, else [1]; totalWeightOut [1]");
    c.op.integer[1] = ignoreIndex;
    return sim_phase1_end(&c, sim_nll, 0);
}
PHASE2(aclnnNLLLoss)

aclnnStatus aclnnNLLLossBackwardGetWorkspaceSize(const aclTensor *gradOutput, const aclTensor *self,
                                                 const aclTensor *target, const aclTensor *weight,
                                                 int64_t reduction, int64_t ignoreIndex,
                                                 const aclTensor *totalWeight, aclTensor *out,
                                                 ENDS_IN)
{
    BEGIN(aclnnNLLLossBackward);
    sim_take(&c, "gradOutput", gradOutput, TYPE_F32), sim_take(&c, "self", self, TYPE_F32);
    sim_take(&c, "target", target, INDICES | TYPE_U8), sim_take(&c, "weight", weight, TYPE_F32);
    sim_take(&c, "totalWeight", totalWeight, TYPE_F32), sim_take(&c, "out", out, TYPE_F32);
    expect_nll(&c, 1, reduction);
    sim_expect(&c,
               sim_elems(&c.op.t[0]) == (reduction == 0 ? c.op.t[1].dim[0] : 1) &&
                   sim_elems(&c.op.t[4]) == 1 && sim_same_shape(&c.op.t[1], &c.op.t[5]),
               "a gradOutput of [N] without a reduction, else [1]; an out as self");
    c.op.integer[1] = ignoreIndex;
    return sim_phase1_end(&c, sim_nll_grad, 0);
}
PHASE2(aclnnNLLLossBackward)

/* ---- embedding ------------------------------------------------------------------------------- */

/* Tensors: rows [.., C] of table [V,C] by number. */
static void expect_rows(sim_call *c, int rows, int numbers, int table)
{
    const sim_tensor *t = c->op.t;
    sim_expect(c, t[table].n_dims == 2 && t[numbers].n_dims == 1, "a table [V,C] and indices [N]");
    sim_expect(c,
               t[rows].n_dims == 2 && t[rows].dim[0] == t[numbers].dim[0] &&
                   t[rows].dim[1] == t[table].dim[1],
               "rows [N,C]");
    sim_expect(c, one_type(c, rows, table), "one type");
}

aclnnStatus aclnnEmbeddingGetWorkspaceSize(const aclTensor *weight, const aclTensor *indices,
                                           const aclTensor *out, ENDS_IN)
{
    BEGIN(aclnnEmbedding);
    sim_take(&c, "weight", weight, FLOATS), sim_take(&c, "indices", indices, INDICES);
    sim_take(&c, "out", out, FLOATS);
    expect_rows(&c, 2, 1, 0);
    return sim_phase1_end(&c, sim_embedding, 0);
}
PHASE2(aclnnEmbedding)

aclnnStatus aclnnEmbeddingDenseBackwardGetWorkspaceSize(const aclTensor *grad,
                                                        const aclTensor *indices,
                                                        uint64_t numWeights, uint64_t paddingIdx,
                                                        bool scaleGradByFreq, const aclTensor *out,
                                                        ENDS_IN)
{
    BEGIN(aclnnEmbeddingDenseBackward);
    sim_take(&c, "grad", grad, FLOATS), sim_take(&c, "indices", indices, INDICES);
    sim_take(&c, "out", out, FLOATS);
    expect_rows(&c, 0, 1, 2);
    sim_expect(&c, c.code != 0 || (uint64_t)c.op.t[2].dim[0] == numWeights, "an out of numWeights");
    sim_expect(&c, !scaleGradByFreq, "no scaleGradByFreq (the stand-in has none)");
    c.op.integer[0] = (int64_t)paddingIdx;
    return sim_phase1_end(&c, sim_embedding_grad, floats_of(&c.op.t[2]));
}
PHASE2(aclnnEmbeddingDenseBackward)

/* ---- attention ------------------------------------------------------------------------------- */

/* What the two calls have in common. */
typedef struct attention_call {
    const aclTensor *none[3], *mask; /* none: positions, dropout, padding */
    const aclIntArray *prefix;
    double scale, keep;
    int64_t before, after, heads;
    const char *layout;
    int64_t sparse_mode;
} attention_call;

/* The shape of out and its gradient: q's rows, with heads as wide as v's. */
static bool as_out(const sim_call *c, const sim_tensor *t)
{
    const sim_tensor *q = &c->op.t[0], *k = &c->op.t[1], *v = &c->op.t[2];
    return t->n_dims == 3 && t->dim[0] == q->dim[0] && t->dim[1] == q->dim[1] &&
           t->dim[2] * k->dim[2] == q->dim[2] * v->dim[2];
}

/* q, k, v are tensors 0, 1, 2; mask, max, sum begin at mask. */
static void expect_attention(sim_call *c, const attention_call *x, int mask)
{
    const sim_tensor *q = &c->op.t[0], *k = &c->op.t[1], *v = &c->op.t[2], *m = &c->op.t[mask];
    const int64_t T = q->dim[1], heads = x->heads > 0 ? x->heads : 1;
    const int64_t D = q->dim[2] / heads, stats[4] = {q->dim[0], heads, T, 8};
    sim_expect(c, x->layout != NULL && strcmp(x->layout, "BSH") == 0,
               "the layout BSH (others the stand-in has not)");
    sim_expect(c, one_type(c, 0, 1) && one_type(c, 0, 2), "q, k and v of one type");
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
    sim_expect(c,
               m->type == ACL_DT_UNDEFINED || (m->n_dims == 2 && m->dim[0] == T && m->dim[1] == T),
               "a mask [S,S]");
    sim_expect(c, x->sparse_mode == 0, "sparseMode 0 (others the stand-in has not)");
    sim_expect(c, m->type == ACL_DT_UNDEFINED || x->before >= T - 1,
               "preTokens that agree with a causal mask");
    sim_expect(c,
               x->none[0] == NULL && x->none[1] == NULL && x->none[2] == NULL &&
                   x->prefix == NULL && x->keep == 1.0,
               "no positions, dropout, padding or prefix (the stand-in has none)");
    for (int i = 1; i <= 2; i++)
        sim_expect(c, m[i].n_dims == 4 && memcmp(m[i].dim, stats, sizeof stats) == 0,
                   "softmaxMax and softmaxSum [B,N,S,8]");
    c->op.number[0] = x->scale;
    c->op.integer[0] = x->heads;
}

aclnnStatus aclnnFlashAttentionScoreGetWorkspaceSize(
    const aclTensor *query, const aclTensor *key, const aclTensor *value,
    const aclTensor *realShiftOptional, const aclTensor *dropMaskOptional,
    const aclTensor *paddingMaskOptional, const aclTensor *attenMaskOptional,
    const aclIntArray *prefixOptional, double scaleValue, double keepProb, int64_t preTokens,
    int64_t nextTokens, int64_t headNum, char *inputLayout, int64_t innerPrecise,
    int64_t sparseMode, const aclTensor *softmaxMaxOut, const aclTensor *softmaxSumOut,
    const aclTensor *softmaxOutOut, const aclTensor *attentionOutOut, ENDS_IN)
{
    BEGIN(aclnnFlashAttentionScore);
    const attention_call x = {{realShiftOptional, dropMaskOptional, paddingMaskOptional},
                              attenMaskOptional,
                              prefixOptional,
                              scaleValue,
                              keepProb,
                              preTokens,
                              nextTokens,
                              headNum,
                              inputLayout,
                              sparseMode};
    (void)innerPrecise;
    sim_take(&c, "query", query, FLOATS), sim_take(&c, "key", key, FLOATS);
    sim_take(&c, "value", value, FLOATS), sim_take(&c, "mask", x.mask, TYPE_U8 | OPTIONAL);
    sim_take(&c, "softmaxMaxOut", softmaxMaxOut, TYPE_F32);
    sim_take(&c, "softmaxSumOut", softmaxSumOut, TYPE_F32);
    sim_take(&c, "attentionOutOut", attentionOutOut, FLOATS);
    sim_take(&c, "softmaxOutOut", softmaxOutOut, FLOATS);
    expect_attention(&c, &x, 3);
    sim_expect(&c, one_type(&c, 0, 6) && as_out(&c, &c.op.t[6]), "an out as query, by v's width");
    return sim_phase1_end(&c, sim_attention, floats_of(&c.op.t[6]));
}
PHASE2(aclnnFlashAttentionScore)

aclnnStatus aclnnFlashAttentionScoreGradGetWorkspaceSize(
    const aclTensor *query, const aclTensor *keyIn, const aclTensor *value, const aclTensor *dy,
    const aclTensor *pseShiftOptional, const aclTensor *dropMaskOptional,
    const aclTensor *paddingMaskOptional, const aclTensor *attenMaskOptional,
    const aclTensor *softmaxMaxOptional, const aclTensor *softmaxSumOptional,
    const aclTensor *softmaxInOptional, const aclTensor *attentionInOptional,
    const aclIntArray *prefixOptional, double scaleValue, double keepProb, int64_t preTokens,
    int64_t nextTokens, int64_t headNum, char *inputLayout, int64_t innerPrecise,
    int64_t sparseMode, const aclTensor *dqOut, const aclTensor *dkOut, const aclTensor *dvOut,
    const aclTensor *dpseOut, ENDS_IN)
{
    BEGIN(aclnnFlashAttentionScoreGrad);
    const attention_call x = {{pseShiftOptional, dropMaskOptional, paddingMaskOptional},
                              attenMaskOptional,
                              prefixOptional,
                              scaleValue,
                              keepProb,
                              preTokens,
                              nextTokens,
                              headNum,
                              inputLayout,
                              sparseMode};
    (void)innerPrecise;
    sim_take(&c, "query", query, FLOATS), sim_take(&c, "keyIn", keyIn, FLOATS);
    sim_take(&c, "value", value, FLOATS), sim_take(&c, "dy", dy, FLOATS);
    sim_take(&c, "mask", x.mask, TYPE_U8 | OPTIONAL);
    sim_take(&c, "softmaxMax", softmaxMaxOptional, TYPE_F32);
    sim_take(&c, "softmaxSum", softmaxSumOptional, TYPE_F32);
    sim_take(&c, "attentionIn", attentionInOptional, FLOATS);
    sim_take(&c, "dqOut", dqOut, FLOATS), sim_take(&c, "dkOut", dkOut, FLOATS);
    sim_take(&c, "dvOut", dvOut, FLOATS);
    expect_attention(&c, &x, 4);
    const sim_tensor *t = c.op.t;
    sim_expect(&c,
               one_type(&c, 0, 3) && one_type(&c, 0, 7) && one_type(&c, 0, 8) &&
                   one_type(&c, 0, 9) && one_type(&c, 0, 10),
               "gradients in query's type");
    sim_expect(&c,
               as_out(&c, &t[3]) && as_out(&c, &t[7]) && sim_same_shape(&t[0], &t[8]) &&
                   sim_same_shape(&t[1], &t[9]) && sim_same_shape(&t[2], &t[10]),
               "dy and attentionIn as query by v's width, dqOut, dkOut and dvOut as query, keyIn "
               "and value");
    sim_expect(&c, softmaxInOptional == NULL && dpseOut == NULL, "no softmaxIn, no dpseOut");
    return sim_phase1_end(&c, sim_attention_grad,
                          floats_of(&t[0]) + floats_of(&t[1]) + floats_of(&t[2]));
}
PHASE2(aclnnFlashAttentionScoreGrad)
