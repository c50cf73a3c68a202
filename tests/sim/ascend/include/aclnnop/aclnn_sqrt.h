/* aclnn_sqrt.h -- of CANN, for a CPU. */
#pragma once
#include "aclnn/aclnn_base.h"

SIM_ACLNN(aclnnSqrt, const aclTensor *self, aclTensor *out);
