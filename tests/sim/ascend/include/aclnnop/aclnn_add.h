#pragma once
#include "aclnn/aclnn_base.h"

/* out = self + alpha other. Smaller operands are repeated, here and in the other operators. */
SIM_ACLNN(aclnnAdd, const aclTensor *self, const aclTensor *other, const aclScalar *alpha,
          aclTensor *out);
SIM_ACLNN(aclnnInplaceAdd, const aclTensor *selfRef, const aclTensor *other,
          const aclScalar *alpha);
SIM_ACLNN(aclnnInplaceAdds, const aclTensor *selfRef, const aclScalar *other,
          const aclScalar *alpha);
