/* under_asan.h -- UNDER_ASAN: 1 in a build with AddressSanitizer, else 0. Under AddressSanitizer
 * memory is not recycled, so that every use after free is found. */
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
