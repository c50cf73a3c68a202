#pragma once
#include "aclnn/aclnn_base.h"

/* out = self mat2. cubeMathType 0 keeps the type, so fp32 is not multiplied as HF32. */
SIM_ACLNN(aclnnMm, const aclTensor *self, const aclTensor *mat2, aclTensor *out,
          int8_t cubeMathType);
