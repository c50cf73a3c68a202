/* aclnn_base.h -- what all headers of aclnnop/, which have CANN's names, begin with. */
#pragma once
#include "aclnn/acl_meta.h"

/* SIM_ACLNN -- the two phases of an operator. The first checks the arguments, says how much
 * workspace the second will need, and makes an executor, which the second uses up.
 *   source  [CANN two-phase API] */
#define SIM_ACLNN(name, ...)                                                                       \
    extern "C" aclnnStatus name##GetWorkspaceSize(__VA_ARGS__, uint64_t *workspaceSize,            \
                                                  aclOpExecutor **executor);                       \
    extern "C" aclnnStatus name(void *workspace, uint64_t workspaceSize, aclOpExecutor *executor,  \
                                aclrtStream stream)
