/* complaint.c -- see complaint.h. */
#include "common/cuda/complaint.h"
#include "common/cuda/cuda_impl.h"

complaint_box *complaint_of(stream *s)
{
    return &cuda_own_of(s->device)->shared_on_gpu->complaint;
}

fsdp_status cuda_complaints(accel_device *d)
{
    static const char *const WHAT[] = {[ABOUT_TOKEN] = "embedding: token %d at position %zu",
                                       [ABOUT_TARGET] = "cross_entropy: target %d in row %zu"};
    const volatile complaint_box *c = &cuda_own_of(&d->base)->shared->complaint;
    char what[96];
    if (c->state != 2)
        return FSDP_OK;
    snprintf(what, sizeof what, WHAT[c->about], (int)c->number, (size_t)c->position);
    (void)fsdp_error(FSDP_EINVAL, "check that the data was made for this vocabulary",
                     "%s, expected 0 ... %zu", what, (size_t)c->n_numbers - 1);
    accel_device_fail(&d->base);
    return FSDP_EINVAL;
}
