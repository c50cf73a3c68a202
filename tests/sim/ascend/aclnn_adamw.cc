/* aclnn_adamw.cc -- AdamW in one call, for the stand-in. No operation of the plug-in uses it; a
 * test compares the two. It shows lab 4's task 4.1, so a learner's tree has no such file. */
#include <math.h>
#include <stdlib.h>
#include "tests/sim/ascend/aclnn_math.h"
#include "tests/sim/ascend/aclnn_phases.h"
#include "aclnnop/aclnn_apply_adam_w_v2.h"

/* p, m, v, grad, step; numbers: lr, beta1, beta2, decay, eps. Its own bias correction, in fp32, and
 * the step after the root: not the order of the recipe. */
static fsdp_status sim_adamw(const sim_op *o)
{
    const int64_t n = sim_elems(&o->t[0]), step = sim_index(&o->t[4], 0);
    const float lr = (float)o->number[0], beta1 = (float)o->number[1], beta2 = (float)o->number[2];
    const float decay = (float)o->number[3], eps = (float)o->number[4];
    const float bias1 = 1.0f - powf(beta1, (float)step), bias2 = 1.0f - powf(beta2, (float)step);
    float *p = sim_load(&o->t[0]), *m = sim_load(&o->t[1]), *v = sim_load(&o->t[2]);
    float *g = sim_load(&o->t[3]);
    for (int64_t i = 0; i < n; i++) {
        p[i] *= 1.0f - lr * decay;
        m[i] = beta1 * m[i] + (1.0f - beta1) * g[i];
        v[i] = beta2 * v[i] + (1.0f - beta2) * g[i] * g[i];
        p[i] -= lr * (m[i] / bias1) / (sqrtf(v[i] / bias2) + eps);
    }
    sim_store(&o->t[0], p), sim_store(&o->t[1], m), sim_store(&o->t[2], v);
    free(p), free(m), free(v), free(g);
    return FSDP_OK;
}

aclnnStatus aclnnApplyAdamWV2GetWorkspaceSize(aclTensor *varRef, aclTensor *mRef, aclTensor *vRef,
                                              aclTensor *maxGradNormOptionalRef,
                                              const aclTensor *grad, const aclTensor *step,
                                              float lr, float beta1, float beta2, float weightDecay,
                                              float eps, bool amsgrad, bool maximize, ENDS_IN)
{
    BEGIN(aclnnApplyAdamWV2);
    const float numbers[] = {lr, beta1, beta2, weightDecay, eps};
    sim_take(&c, "varRef", varRef, TYPE_F32), sim_take(&c, "mRef", mRef, TYPE_F32);
    sim_take(&c, "vRef", vRef, TYPE_F32), sim_take(&c, "grad", grad, TYPE_F32);
    sim_take(&c, "step", step, TYPE_F32 | TYPE_I64);
    for (int i = 1; i < 4; i++)
        sim_expect(&c, sim_same_shape(&c.op.t[0], &c.op.t[i]), "one shape");
    sim_expect(&c, c.op.t[4].n_dims == 1 && c.op.t[4].dim[0] == 1, "a step [1]");
    sim_expect(&c, !amsgrad && !maximize && maxGradNormOptionalRef == NULL,
               "neither amsgrad nor maximize (the stand-in has none)");
    for (int i = 0; i < 5; i++)
        c.op.number[i] = (double)numbers[i];
    return sim_phase1_end(&c, sim_adamw, 0);
}
PHASE2(aclnnApplyAdamWV2)
