#pragma once
#include "aclnn/aclnn_base.h"

SIM_ACLNN(aclnnInplaceDiv, aclTensor *selfRef, const aclTensor *other);
SIM_ACLNN(aclnnInplaceDivs, aclTensor *selfRef, const aclScalar *other);
