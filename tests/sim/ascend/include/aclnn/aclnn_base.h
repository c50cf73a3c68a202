/* aclnn_base.h -- included by all headers of aclnnop/, which have CANN's names. */
#pragma once
#include "aclnn/acl_meta.h"

/* SIM_ACLNN -- declare the two phases of an operator. The first checks the arguments, returns the
 * bytes of workspace that the second needs, and makes an executor. The second uses up the executor.
 *   source  [CANN two-phase API] */
#define SIM_ACLNN(name, ...)                                                                       \
    extern "C" aclnnStatus name##GetWorkspaceSize(__VA_ARGS__, uint64_t *workspaceSize,            \
                                                  aclOpExecutor **executor);                       \
    extern "C" aclnnStatus name(void *workspace, uint64_t workspaceSize, aclOpExecutor *executor,  \
                                aclrtStream stream)
