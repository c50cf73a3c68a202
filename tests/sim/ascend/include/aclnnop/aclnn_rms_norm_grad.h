#pragma once
#include "aclnn/aclnn_base.h"

SIM_ACLNN(aclnnRmsNormGrad, const aclTensor *dy, const aclTensor *x, const aclTensor *rstd,
          const aclTensor *gamma, const aclTensor *dxOut, const aclTensor *dgammaOut);
