#pragma once
#include "aclnn/aclnn_base.h"

/* out = gradOutput - exp(output) * the sum of gradOutput over dim. */
SIM_ACLNN(aclnnLogSoftmaxBackward, const aclTensor *gradOutput, const aclTensor *output,
          int64_t dim, aclTensor *out);
