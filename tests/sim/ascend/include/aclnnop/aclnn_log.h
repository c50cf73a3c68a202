#pragma once
#include "aclnn/aclnn_base.h"

SIM_ACLNN(aclnnLog, const aclTensor *self, aclTensor *out);
