#pragma once
#include "aclnn/aclnn_base.h"

/* Zeroes element (i,j) of a matrix where j < i + diagonal. */
SIM_ACLNN(aclnnInplaceTriu, aclTensor *selfRef, int64_t diagonal);
