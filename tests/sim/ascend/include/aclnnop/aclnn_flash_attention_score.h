#pragma once
#include "aclnn/aclnn_base.h"

/* attenMaskOptional is 1 where a query must not see a key. softmaxMaxOut and softmaxSumOut are fp32
 * [B,N,Sq,8], with each number repeated eight times. softmaxOutOut is not used. */
SIM_ACLNN(aclnnFlashAttentionScore, const aclTensor *query, const aclTensor *key,
          const aclTensor *value, const aclTensor *realShiftOptional,
          const aclTensor *dropMaskOptional, const aclTensor *paddingMaskOptional,
          const aclTensor *attenMaskOptional, const aclIntArray *prefixOptional, double scaleValue,
          double keepProb, int64_t preTokens, int64_t nextTokens, int64_t headNum,
          char *inputLayout, int64_t innerPrecise, int64_t sparseMode,
          const aclTensor *softmaxMaxOut, const aclTensor *softmaxSumOut,
          const aclTensor *softmaxOutOut, const aclTensor *attentionOutOut);
