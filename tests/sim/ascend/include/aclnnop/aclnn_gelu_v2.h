#pragma once
#include "aclnn/aclnn_base.h"

/* approximate: 0 by erf, 1 by tanh. */
SIM_ACLNN(aclnnGeluV2, const aclTensor *x, int64_t approximate, aclTensor *y);
