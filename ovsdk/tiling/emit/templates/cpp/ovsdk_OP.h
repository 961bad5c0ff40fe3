/* The tiling of $op for a C or C++ program: compile ovsdk_$op.cpp with it. Written by `ovsdk tile emit $op --target cpp`. */
#pragma once

#include <stdint.h>

/* What `a` holds. */
$arguments

/* The record: $length. */
$structs

#ifdef __cplusplus
extern "C"
#endif
/* Derive the record. `v`: values${of_values}; `record`: all 0 before. On a fault `fault` and `at` say which, and the rest is 0. */
void ovsdk_${op}_tiling(const int64_t *a, const int64_t *v, int64_t *record);
