/* vectors_avx512.h -- the vectors of AVX-512 by the names that gemm_fma.h and transpose.h use. */
#define vector       __m512
#define LANES        16
#define LOAD         _mm512_loadu_ps
#define STORE        _mm512_storeu_ps
#define STREAM       _mm512_stream_ps
#define SPREAD       _mm512_set1_ps
#define ADD          _mm512_add_ps
#define MULTIPLY_ADD _mm512_fmadd_ps
#define LOAD_4X(x, ld)                                                                             \
    _mm512_insertf32x4(                                                                            \
        _mm512_insertf32x4(_mm512_insertf32x4(_mm512_castps128_ps512(_mm_loadu_ps(x)),             \
                                              _mm_loadu_ps((x) + 4 * (ld)), 1),                    \
                           _mm_loadu_ps((x) + 8 * (ld)), 2),                                       \
        _mm_loadu_ps((x) + 12 * (ld)), 3)
#define UNPACK(part, type, x, y) _mm512_unpack##part##_##type(x, y)
#define AS_PAIRS                 _mm512_castps_pd
#define AS_SINGLES               _mm512_castpd_ps
