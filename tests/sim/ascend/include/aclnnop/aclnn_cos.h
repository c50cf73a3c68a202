/* aclnn_cos.h -- of CANN, for a CPU. */
#pragma once
#include "aclnn/aclnn_base.h"

SIM_ACLNN(aclnnCos, const aclTensor *input, aclTensor *out);
