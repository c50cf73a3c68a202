/* under_asan.h -- UNDER_ASAN: 1 if AddressSanitizer checks the build. Memory is not recycled then,
 * so that it sees every use after free. */
#pragma once

#if defined(__has_feature)
#if __has_feature(address_sanitizer)
#define UNDER_ASAN 1
#endif
#endif
#if defined(__SANITIZE_ADDRESS__) && !defined(UNDER_ASAN)
#define UNDER_ASAN 1
#endif
#ifndef UNDER_ASAN
#define UNDER_ASAN 0
#endif
