#pragma once
#include "aclnn/aclnn_base.h"

/* selfRef = src, repeated to selfRef's shape. */
SIM_ACLNN(aclnnInplaceCopy, aclTensor *selfRef, const aclTensor *src);
