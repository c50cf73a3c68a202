/* pmath.h -- portable exp, log, tanh, sine and cosine: the same bits on every IEEE-754 machine.
 *
 * Built from + - * / sqrt, comparisons and integer operations on the bits only, in one written
 * order; compiled with -ffp-contract=off, so no compiler fuses a multiply-add into them. libm's
 * functions differ between machines (glibc picks FMA variants at run time). The float functions
 * are branch-free static inlines, so that loops over them vectorise without changing a bit.
 * Accuracy (measured by tests/unit against double libm over all exponents): stated at each.     */
#pragma once
#include <stdint.h>
#include <string.h>

/* exp: <= 0.96 ulp (measured over every float), denormal results included; +inf above 88.72, 0
 * below -103.97. log: <= 0.84 ulp over every float, denormals included; -inf at 0, NaN below.
 * tanh: <= 1.34 ulp over every float, denormals included; odd; exactly +-1 at infinity.
 * A NaN gives that NaN. The bodies are in pmath_impl.h.                                          */
static inline float pm_expf(float x);
static inline float pm_expf_upto40(float x); /* the same bits, in fewer steps; x <= 40 or NaN */
static inline float pm_logf(float x);
static inline float pm_tanhf(float x);

/* pm_log -- <= 0.86 ulp; special cases as pm_logf. */
double pm_log(double x);

/* pm_cos -- |x| <= 64 (asserted): the learning-rate schedule. Error <= 1.5e-16. */
double pm_cos(double x);

/* pm_sincos_turns -- sine and cosine of 2*pi*turns, turns in [0,1). Error of each <= 1.7e-16; exact
 * at quarter turns.                                                                              */
void pm_sincos_turns(double turns, double *s, double *c);

#include "common/base/pmath_impl.h"
