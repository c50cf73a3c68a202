#pragma once
#include "aclnn/aclnn_base.h"

/* approximate: 0 for erf, 1 for tanh. */
SIM_ACLNN(aclnnGeluV2, const aclTensor *x, int64_t approximate, aclTensor *y);
