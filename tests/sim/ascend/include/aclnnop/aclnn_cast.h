#pragma once
#include "aclnn/aclnn_base.h"

/* dtype is out's type. */
SIM_ACLNN(aclnnCast, const aclTensor *self, const aclDataType dtype, aclTensor *out);
