#pragma once
#include "aclnn/aclnn_base.h"

/* mode: 0 by halves, 1 interleaved. */
SIM_ACLNN(aclnnRotaryPositionEmbedding, const aclTensor *x, const aclTensor *cos,
          const aclTensor *sin, int64_t mode, aclTensor *out);
