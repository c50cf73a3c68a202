/* aclnn_fill_scalar.h -- of CANN, for a CPU. */
#pragma once
#include "aclnn/aclnn_base.h"

SIM_ACLNN(aclnnInplaceFillScalar, aclTensor *selfRef, const aclScalar *value);
