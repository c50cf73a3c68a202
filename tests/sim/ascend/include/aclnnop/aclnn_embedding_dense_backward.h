#pragma once
#include "aclnn/aclnn_base.h"

/* Row i of out is the sum of the rows of grad whose index is i; the row of paddingIdx is 0. Only
 * ACL_OPT_DETERMINISTIC fixes the order of the sum. */
SIM_ACLNN(aclnnEmbeddingDenseBackward, const aclTensor *grad, const aclTensor *indices,
          uint64_t numWeights, uint64_t paddingIdx, bool scaleGradByFreq, const aclTensor *out);
