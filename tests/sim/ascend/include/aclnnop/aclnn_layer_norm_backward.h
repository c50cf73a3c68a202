#pragma once
#include "aclnn/aclnn_base.h"

/* outputMask: which of the three gradients are wanted. */
SIM_ACLNN(aclnnLayerNormBackward, const aclTensor *gradOut, const aclTensor *input,
          const aclIntArray *normalizedShape, const aclTensor *mean, const aclTensor *rstd,
          const aclTensor *weightOptional, const aclTensor *biasOptional,
          const aclBoolArray *outputMask, aclTensor *gradInputOut, aclTensor *gradWeightOut,
          aclTensor *gradBiasOut);
