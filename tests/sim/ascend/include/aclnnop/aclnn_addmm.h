#pragma once
#include "aclnn/aclnn_base.h"

/* selfRef = beta selfRef + alpha mat1 mat2. */
SIM_ACLNN(aclnnInplaceAddmm, const aclTensor *selfRef, const aclTensor *mat1, const aclTensor *mat2,
          const aclScalar *beta, const aclScalar *alpha, int8_t cubeMathType);
