#pragma once
#include "aclnn/aclnn_base.h"

SIM_ACLNN(aclnnInplaceFillScalar, aclTensor *selfRef, const aclScalar *value);
