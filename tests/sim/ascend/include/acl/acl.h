/* acl.h -- aclInit, aclFinalize and the last error message; see acl_rt.h. */
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
