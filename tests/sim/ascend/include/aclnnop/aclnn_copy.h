#pragma once
#include "aclnn/aclnn_base.h"

/* selfRef = src, whose shape is repeated to selfRef's. */
SIM_ACLNN(aclnnInplaceCopy, aclTensor *selfRef, const aclTensor *src);
