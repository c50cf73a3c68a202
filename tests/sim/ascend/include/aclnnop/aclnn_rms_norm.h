#pragma once
#include "aclnn/aclnn_base.h"

SIM_ACLNN(aclnnRmsNorm, const aclTensor *x, const aclTensor *gamma, double epsilon,
          const aclTensor *yOut, const aclTensor *rstdOut);
