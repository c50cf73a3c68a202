/* pmath.h -- portable exp, log, tanh, sine and cosine: the same bits on every IEEE-754 machine.
 *
 * They use only + - * / sqrt, comparisons and integer operations on the bits, in a fixed order, and
 * are compiled with -ffp-contract=off, so no compiler fuses a multiply-add. libm's functions differ
 * between machines (glibc chooses FMA variants at run time). The float functions are branch-free
 * static inlines, so loops over them vectorise without changing a bit. tests/unit measures the
 * stated accuracy against libm in double over all exponents. */
#pragma once
#include <stdint.h>
#include <string.h>
#include "common/base/row_fn.h"

/* pm_expf -- <= 0.96 ulp over every float, denormal results included; +inf above 88.72, 0 below
 * -103.97. The four float functions return a NaN argument unchanged. */
ROW_FN float pm_expf(float x);
/* pm_expf_upto40 -- the bits of pm_expf in fewer steps, for x <= 40 or NaN. */
ROW_FN float pm_expf_upto40(float x);
/* pm_logf -- <= 0.84 ulp over every float, denormals included; -inf at 0, NaN below 0. */
ROW_FN float pm_logf(float x);
/* pm_tanhf -- <= 1.34 ulp over every float, denormals included; odd; exactly +-1 at infinity. */
ROW_FN float pm_tanhf(float x);

/* pm_log -- <= 0.86 ulp; special cases as in pm_logf. */
ROW_FN double pm_log(double x);

/* pm_exp -- <= 1.6 ulp for |x| <= 700; undefined for larger |x|. */
ROW_FN double pm_exp(double x);

/* pm_cos -- for the learning-rate schedule: |x| <= 64 (asserted), error <= 1.5e-16. */
double pm_cos(double x);

/* pm_sincos_turns -- sine and cosine of 2*pi*turns, turns in [0,1). The error of each is <=
 * 1.7e-16; quarter turns are exact. */
ROW_FN void pm_sincos_turns(double turns, double *s, double *c);

#include "common/base/pmath_impl.h"
