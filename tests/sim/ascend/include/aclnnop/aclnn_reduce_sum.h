#pragma once
#include "aclnn/aclnn_base.h"

/* The sum over dims, computed in dtype, which is out's type. */
SIM_ACLNN(aclnnReduceSum, const aclTensor *self, const aclIntArray *dims, bool keepDims,
          aclDataType dtype, aclTensor *out);
