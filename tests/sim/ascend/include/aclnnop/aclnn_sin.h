#pragma once
#include "aclnn/aclnn_base.h"

SIM_ACLNN(aclnnSin, const aclTensor *input, aclTensor *out);
