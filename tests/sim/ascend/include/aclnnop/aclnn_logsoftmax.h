#pragma once
#include "aclnn/aclnn_base.h"

SIM_ACLNN(aclnnLogSoftmax, const aclTensor *self, int64_t dim, aclTensor *out);
