/* aclnn_rms_norm.h -- of CANN, for a CPU. */
#pragma once
#include "aclnn/aclnn_base.h"

SIM_ACLNN(aclnnRmsNorm, const aclTensor *x, const aclTensor *gamma, double epsilon,
          const aclTensor *yOut, const aclTensor *rstdOut);
