#pragma once
#include "aclnn/aclnn_base.h"

SIM_ACLNN(aclnnMul, const aclTensor *self, const aclTensor *other, aclTensor *out);
SIM_ACLNN(aclnnInplaceMul, aclTensor *selfRef, const aclTensor *other);
SIM_ACLNN(aclnnMuls, const aclTensor *self, const aclScalar *other, aclTensor *out);
SIM_ACLNN(aclnnInplaceMuls, aclTensor *selfRef, const aclScalar *other);
