#pragma once
#include "aclnn/aclnn_base.h"

SIM_ACLNN(aclnnInplaceZero, aclTensor *selfRef);
