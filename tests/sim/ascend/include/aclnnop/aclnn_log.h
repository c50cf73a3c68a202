/* aclnn_log.h -- of CANN, for a CPU. */
#pragma once
#include "aclnn/aclnn_base.h"

SIM_ACLNN(aclnnLog, const aclTensor *self, aclTensor *out);
