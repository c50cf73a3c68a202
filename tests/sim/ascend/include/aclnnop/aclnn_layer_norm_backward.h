#pragma once
#include "aclnn/aclnn_base.h"

/* outputMask says which of the three gradients to compute. */
SIM_ACLNN(aclnnLayerNormBackward, const aclTensor *gradOut, const aclTensor *input,
          const aclIntArray *normalizedShape, const aclTensor *mean, const aclTensor *rstd,
          const aclTensor *weightOptional, const aclTensor *biasOptional,
          const aclBoolArray *outputMask, aclTensor *gradInputOut, aclTensor *gradWeightOut,
          aclTensor *gradBiasOut);
