#pragma once
#include "aclnn/aclnn_base.h"

/* reduction: 0 none, 1 mean, 2 sum. Targets equal to ignoreIndex are ignored. */
SIM_ACLNN(aclnnNLLLoss, const aclTensor *self, const aclTensor *target, const aclTensor *weight,
          int64_t reduction, int64_t ignoreIndex, aclTensor *out, aclTensor *totalWeightOut);
