#pragma once
#include "aclnn/aclnn_base.h"

SIM_ACLNN(aclnnEmbedding, const aclTensor *weight, const aclTensor *indices, const aclTensor *out);
