/* aclnn_apply_adam_w_v2.h -- of CANN, for a CPU. */
#pragma once
#include "aclnn/aclnn_base.h"

/* AdamW in one call, with its own bias correction by *step, which counts from 1. */
SIM_ACLNN(aclnnApplyAdamWV2, aclTensor *varRef, aclTensor *mRef, aclTensor *vRef,
          aclTensor *maxGradNormOptionalRef, const aclTensor *grad, const aclTensor *step, float lr,
          float beta1, float beta2, float weightDecay, float eps, bool amsgrad, bool maximize);
