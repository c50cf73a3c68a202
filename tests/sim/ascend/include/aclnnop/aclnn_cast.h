#pragma once
#include "aclnn/aclnn_base.h"

/* dtype is that of out. */
SIM_ACLNN(aclnnCast, const aclTensor *self, const aclDataType dtype, aclTensor *out);
