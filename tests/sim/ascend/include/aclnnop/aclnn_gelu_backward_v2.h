/* aclnn_gelu_backward_v2.h -- of CANN, for a CPU. */
#pragma once
#include "aclnn/aclnn_base.h"

/* approximate: "none" or "tanh". */
SIM_ACLNN(aclnnGeluBackwardV2, const aclTensor *gradOutput, const aclTensor *self,
          char *approximate, aclTensor *gradInput);
