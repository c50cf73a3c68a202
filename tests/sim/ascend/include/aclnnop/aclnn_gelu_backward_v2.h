#pragma once
#include "aclnn/aclnn_base.h"

/* approximate: "none" or "tanh". */
SIM_ACLNN(aclnnGeluBackwardV2, const aclTensor *gradOutput, const aclTensor *self,
          char *approximate, aclTensor *gradInput);
