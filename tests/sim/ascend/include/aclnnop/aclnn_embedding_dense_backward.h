#pragma once
#include "aclnn/aclnn_base.h"

/* Row i of out is the sum of grad's rows whose index is i, and 0 for paddingIdx. The order of the
 * sum is fixed with ACL_OPT_DETERMINISTIC only. */
SIM_ACLNN(aclnnEmbeddingDenseBackward, const aclTensor *grad, const aclTensor *indices,
          uint64_t numWeights, uint64_t paddingIdx, bool scaleGradByFreq, const aclTensor *out);
