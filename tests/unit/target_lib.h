/* target_lib.h -- the device that a test runs on: what FSDP_DEVICE names, "cpu" without it. */
#pragma once
#include "common/device/device.h"

/* target_backend -- that device. It ends the program if there is none of that name. */
const device_backend *target_backend(void);
