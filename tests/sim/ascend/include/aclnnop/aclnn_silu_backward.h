#pragma once
#include "aclnn/aclnn_base.h"

SIM_ACLNN(aclnnSiluBackward, const aclTensor *gradOutput, const aclTensor *self,
          aclTensor *gradInput);
