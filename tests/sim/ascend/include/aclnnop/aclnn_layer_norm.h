#pragma once
#include "aclnn/aclnn_base.h"

SIM_ACLNN(aclnnLayerNorm, const aclTensor *input, const aclIntArray *normalizedShape,
          const aclTensor *weightOptional, const aclTensor *biasOptional, double eps,
          aclTensor *out, aclTensor *meanOutOptional, aclTensor *rstdOutOptional);
