/* transpose.h -- a transpose in registers for one instruction set. It is included once for each,
 * between definitions of
 *
 *   ISA_FN            how a function of the set begins
 *   NAME(x)           x with a suffix for the set
 *   vector, LANES     a vector of LANES floats
 *   STORE             an intrinsic
 *   LOAD_4X(x, ld)    4 floats of each fourth row: x, x + 4 ld, ...
 *   UNPACK, AS_PAIRS, AS_SINGLES: interleaves floats or pairs of them in parts of four */

/* out [LANES], row stride ld_out = the transpose of LANES x LANES elements of x: by parts of four
 * elements of four rows. */
ISA_FN inline __attribute__((always_inline)) void NAME(transpose)(const float *x, size_t ld,
                                                                  float *out, size_t ld_out)
{
#pragma GCC unroll 4
    for (size_t q = 0; q < LANES; q += 4) {
        const vector r0 = LOAD_4X(x + q, ld), r1 = LOAD_4X(x + q + ld, ld),
                     r2 = LOAD_4X(x + q + 2 * ld, ld), r3 = LOAD_4X(x + q + 3 * ld, ld);
        const vector low01 = UNPACK(lo, ps, r0, r1), high01 = UNPACK(hi, ps, r0, r1);
        const vector low23 = UNPACK(lo, ps, r2, r3), high23 = UNPACK(hi, ps, r2, r3);
        float *const to = out + q * ld_out;
        STORE(to, AS_SINGLES(UNPACK(lo, pd, AS_PAIRS(low01), AS_PAIRS(low23))));
        STORE(to + ld_out, AS_SINGLES(UNPACK(hi, pd, AS_PAIRS(low01), AS_PAIRS(low23))));
        STORE(to + 2 * ld_out, AS_SINGLES(UNPACK(lo, pd, AS_PAIRS(high01), AS_PAIRS(high23))));
        STORE(to + 3 * ld_out, AS_SINGLES(UNPACK(hi, pd, AS_PAIRS(high01), AS_PAIRS(high23))));
    }
}
