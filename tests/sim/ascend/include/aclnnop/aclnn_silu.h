#pragma once
#include "aclnn/aclnn_base.h"

SIM_ACLNN(aclnnSilu, const aclTensor *self, aclTensor *out);
