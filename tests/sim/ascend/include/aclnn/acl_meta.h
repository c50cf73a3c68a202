/* acl_meta.h -- the part of CANN's header of this name that lab6_npu uses, for a CPU: descriptions
 * of tensors and scalars, and executors. The library is tests/sim/ascend/aclnn*; its README.md says
 * what it checks. As in CANN, C cannot include it.
 *
 * A tensor's offset counts elements. Its view may be any strided part of the storage: a transposed
 * matrix is the same storage with swapped dimensions and strides.
 *   source  [CANN aclCreateTensor] */
#pragma once
#include "acl/acl_base.h"

#ifndef __cplusplus
#error "aclnn's headers are C++, as CANN's are: see lab6_npu/aclnn_call.h for C"
#endif

typedef int32_t aclnnStatus;
constexpr aclnnStatus OK = 0;

extern "C" {

typedef struct aclOpExecutor aclOpExecutor;
typedef struct aclTensor aclTensor;
typedef struct aclScalar aclScalar;
typedef struct aclIntArray aclIntArray;
typedef struct aclBoolArray aclBoolArray;

aclTensor *aclCreateTensor(const int64_t *viewDims, uint64_t viewDimsNum, aclDataType dataType,
                           const int64_t *stride, int64_t offset, aclFormat format,
                           const int64_t *storageDims, uint64_t storageDimsNum, void *tensorData);
aclScalar *aclCreateScalar(void *value, aclDataType dataType);
aclIntArray *aclCreateIntArray(const int64_t *value, uint64_t size);
aclBoolArray *aclCreateBoolArray(const bool *value, uint64_t size);
aclnnStatus aclDestroyTensor(const aclTensor *tensor);
aclnnStatus aclDestroyScalar(const aclScalar *scalar);
aclnnStatus aclDestroyIntArray(const aclIntArray *array);
aclnnStatus aclDestroyBoolArray(const aclBoolArray *array);
aclnnStatus aclDestroyAclOpExecutor(aclOpExecutor *executor);
}
