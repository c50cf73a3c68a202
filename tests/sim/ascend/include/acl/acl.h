/* acl.h -- see acl_rt.h: what begins and ends the use of CANN's runtime, and its words for the last
 * error. */
#pragma once
#include "acl_rt.h"

#ifdef __cplusplus
extern "C" {
#endif

aclError aclInit(const char *configPath);
aclError aclFinalize(void);
const char *aclGetRecentErrMsg(void);

#ifdef __cplusplus
}
#endif
