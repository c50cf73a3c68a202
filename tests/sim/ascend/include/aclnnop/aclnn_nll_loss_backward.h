#pragma once
#include "aclnn/aclnn_base.h"

SIM_ACLNN(aclnnNLLLossBackward, const aclTensor *gradOutput, const aclTensor *self,
          const aclTensor *target, const aclTensor *weight, int64_t reduction, int64_t ignoreIndex,
          const aclTensor *totalWeight, aclTensor *out);
