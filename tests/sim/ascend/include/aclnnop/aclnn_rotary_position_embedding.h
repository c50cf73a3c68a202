#pragma once
#include "aclnn/aclnn_base.h"

/* mode: 0 pairs the halves, 1 pairs neighbours (interleaved). */
SIM_ACLNN(aclnnRotaryPositionEmbedding, const aclTensor *x, const aclTensor *cos,
          const aclTensor *sin, int64_t mode, aclTensor *out);
