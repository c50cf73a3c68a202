#pragma once
#include "aclnn/aclnn_base.h"

SIM_ACLNN(aclnnSqrt, const aclTensor *self, aclTensor *out);
