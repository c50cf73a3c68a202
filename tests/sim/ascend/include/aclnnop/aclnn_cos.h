#pragma once
#include "aclnn/aclnn_base.h"

SIM_ACLNN(aclnnCos, const aclTensor *input, aclTensor *out);
