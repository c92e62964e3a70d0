/* Sparse layer kernels: forward, and both gradients, without the masked work.
 *
 * A matrix product with a masked weight is a sum over its non-zeros, each of which scales a row of
 * tokens. Tokens are therefore packed into panels [feature][PANEL], PANEL being VECTORS vectors, and
 * the mask into CSR cut into column tiles, so that the panel rows a tile refers to stay in L1.
 * The forward, and the input gradient from the transposed structure, hold one output row in
 * registers and add scaled rows of the tile. The weight gradient holds one row in registers and
 * takes its dot products with rows of the tile. Rows go in blocks that stay in L2.
 *
 * The file includes itself, once for each instruction set; the widest the processor has is chosen
 * when the library loads. Nothing is needed but a C compiler (GCC or Clang); OpenMP is optional.
 */
#ifndef LANES

#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#ifdef _OPENMP
#include <omp.h>
#else
static int omp_get_thread_num(void) { return 0; }
static int omp_get_num_threads(void) { return 1; }
#endif
#if defined(__x86_64__)
#include <cpuid.h>
#include <immintrin.h>
#endif

/* One orientation of a mask: `rows` outputs of the product, `columns` inputs, tiled by column.
 * Entries of (tile, row) are start[tile * rows + row] .. start[tile * rows + row + 1]. `by_column`
 * says that the mask and the weight are stored [columns][rows]. */
typedef struct {
    int64_t rows, columns, tile, lanes, by_column;
    int32_t *start;
    uint16_t *offset;  /* in lines of 64 bytes, of its panel row within the tile; seven zeros follow */
    int32_t *position; /* in the weight */
} Structure;

/* Where the features of a token lie. kind 0: row-major [token][feature] with `stride` numbers between
 * tokens. kind 1: an image batch [image][channel][height][width] whose tokens are the positions of a
 * sliding window and whose features are (channel, window row, window column). */
typedef struct {
    void *data;
    int64_t half; /* numbers are bfloat16; only of kind 0, and only where there are kernels for it */
    int64_t kind, tokens, features, stride;
    int64_t channels, height, width, out_height, out_width;
    int64_t kernel_h, kernel_w, stride_h, stride_w, pad_h, pad_w, dilation_h, dilation_w;
} View;

/* Memory that is asked for while a product computes: two regions, `step` bytes of each per row. */
typedef struct {
    const char *first, *second;
    int64_t first_size, second_size, at, step;
} Ahead;

/* Panels hold `panel` tokens of `row_bytes` per feature, results `panel` floats per row. With `half`
 * panels and values are bfloat16. */
typedef struct {
    int lanes, panel, row_bytes, half;
    void (*transpose_in)(const void *, int64_t, int64_t, int64_t, void *);
    void (*transpose_out)(void *, int64_t, int64_t, int64_t, const float *);
    void (*multiply)(const Structure *, const void *, int64_t, int64_t, int64_t, const void *,
                     float *, const float *, int64_t, Ahead *);
    void (*dot)(const Structure *, int64_t, int64_t, int64_t, const void *, const void *, float *,
                int64_t);
    void (*add_sums)(const void *, int64_t, float *);
    void (*hash)(const uint8_t *, int64_t, uint64_t *);
} Kernels;

/* Chains of a fingerprint, each of words of eight bytes. */
#define HASHES 16
#define HASH_PRIME 0x9E3779B97F4A7C15ull

/* Rows whose panels stay in L2 while the tiles pass. */
#define ROW_BLOCK 512

/* Of each piece of memory that is asked for early. */
#define AHEAD_BYTES (128 * 1024)

/* Entries are taken four at a time, which costs one load of offsets and one of values. */
static inline uint64_t load_offsets(const uint16_t *offset)
{
    uint64_t four;
    memcpy(&four, offset, sizeof(four));
    return four;
}
#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
#define PLACE(n) (16 * (n))
#else
#define PLACE(n) (48 - 16 * (n))
#endif
#define LINE 64
#define NTH_OFFSET(four, n) \
    ((PLACE(n) > 0 ? (four) >> (PLACE(n) > 0 ? PLACE(n) - 6 : 0) : (four) << 6) & (uint64_t)0xffff * LINE)

/* From element 8 - n on: a mask of the first n of eight lanes. */
static const int32_t first_lanes[16] = {-1, -1, -1, -1, -1, -1, -1, -1};

static int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }

static inline __attribute__((always_inline)) void look_ahead(Ahead *a)
{
    int64_t stop = a->at + a->step;
    for (; a->at < stop; a->at += LINE) {
        if (a->at < a->first_size)
            __builtin_prefetch(a->first + a->at, 0, 2);
        if (a->at < a->second_size)
            __builtin_prefetch(a->second + a->at, 0, 2);
    }
}

/* Calls a kernel with the part of each panel row, a constant, that the first `count` tokens take. */
#define FOR_PART(count, panel, least, parts, kernel, ...)                                          \
    {                                                                                              \
        if ((count) > (panel) / 2)                                                                 \
            kernel(__VA_ARGS__, parts);                                                            \
        else if ((count) > (panel) / 4)                                                            \
            kernel(__VA_ARGS__, (parts) / 2);                                                      \
        else                                                                                       \
            kernel(__VA_ARGS__, (parts) / 4 < (least) ? (least) : (parts) / 4);                    \
    }

#define GLUE2(a, b) a##b
#define GLUE(a, b) GLUE2(a, b)
#define NAME(stem) GLUE(stem, SUFFIX)

/* Compilers fold a load into each of its two uses, but loads are what these loops are short of. */
#if defined(__x86_64__)
#define KEEP_IN_REGISTER(v) __asm__("" : "+v"(v))
#else
#define KEEP_IN_REGISTER(v) (void)(v)
#endif

/* ---- words of the kernels of one instruction set ---- */

#define VEC NAME(vec)
#define PANEL (VECTORS * LANES)
#define LOAD(p) (*(const VEC *)(p))
#define STORE(p, v) (*(VEC *)(p) = (v))

/* Element i of both: pairs of lanes within each group of four, as the hardware shuffles. */
#define GROUPS_4(a, b, c, d) a, b, (c) + 4, (d) + 4
#define SPREAD_4(x, j) __builtin_shufflevector(x, x, j, j, j, j)
#define GROUPS_8(a, b, c, d) a, b, (c) + 8, (d) + 8, (a) + 4, (b) + 4, (c) + 12, (d) + 12
#define SPREAD_8(x, j) __builtin_shufflevector(x, x, j, j, j, j, (j) + 4, (j) + 4, (j) + 4, (j) + 4)
#define GROUPS_16(a, b, c, d)                                                                   \
    a, b, (c) + 16, (d) + 16, (a) + 4, (b) + 4, (c) + 20, (d) + 20, (a) + 8, (b) + 8, (c) + 24, \
        (d) + 24, (a) + 12, (b) + 12, (c) + 28, (d) + 28
#define SPREAD_16(x, j)                                                                        \
    __builtin_shufflevector(x, x, j, j, j, j, (j) + 4, (j) + 4, (j) + 4, (j) + 4, (j) + 8, (j) + 8, \
                            (j) + 8, (j) + 8, (j) + 12, (j) + 12, (j) + 12, (j) + 12)
#define GROUPS GLUE(GROUPS_, LANES)
#define SPREAD GLUE(SPREAD_, LANES)
#define SHUFFLE(x, y, a, b, c, d) __builtin_shufflevector(x, y, GROUPS(a, b, c, d))

typedef float FOUR __attribute__((vector_size(16), aligned(4), may_alias));
typedef int32_t FOUR_MASKS __attribute__((vector_size(16), aligned(4), may_alias));

#define SMALL_BLOCK (LANES < 8 ? 4 : 8)
#define BLOCK (LANES == 16 ? 16 : SMALL_BLOCK)

#define EACH_ENTRY _Pragma("GCC unroll 4") for (int n = 0; n < 4; n++)

/* The vectors of one panel row. Loops over them must unroll for the array to live in registers. */
#define EACH_VECTOR _Pragma("GCC unroll 8") for (int k = 0; k < VECTORS; k++)

/* Those of every other entry. */
#define SECOND_SUMS GLUE(SUMS_, CHAINS)
#define SUMS_1 a
#define SUMS_2 b

#define PANEL_ROW(entry) ((const float *)(base + (int64_t)offset[entry] * LINE))

#define ADD_ENTRY(sums, n)                                                \
    {                                                                     \
        const float *p = (const float *)(base + NTH_OFFSET(offsets, n));  \
        VEC v = SPREAD(values, n);                                        \
        EACH_VECTOR if (k < vectors) sums[k] += v * LOAD(p + k * LANES);  \
    }

#define CHAINS 1
#define LANES 4
#define VECTORS 8
#define SUFFIX _portable
#define TARGET
#include "kernels.c"
#undef LANES
#undef TARGET

#if defined(__x86_64__)
#define LANES 8
#define SUFFIX _avx2
#define TARGET __attribute__((target("avx2,fma")))
#include "kernels.c"
#undef LANES
#undef TARGET

/* Chains of multiply-adds that keep two units busy, each four cycles deep. */
#define LANES 16
#define SUFFIX _avx512
#define TARGET __attribute__((target("avx512f,avx512vl,avx512dq,avx2,fma")))
#include "kernels.c"
#undef VECTORS

/* Zen 4 has one unit for 512 bits. Narrow panels leave room in L1 for twice the columns. */
#define VECTORS 4
#define SUFFIX _avx512_narrow
#include "kernels.c"
#undef CHAINS

/* Zen 5 has two, which need eight chains: four vectors twice. */
#define CHAINS 2
#define SUFFIX _avx512_two
#include "kernels.c"
#undef LANES
#undef TARGET
#endif
#undef VECTORS
#undef CHAINS

/* ---- bfloat16: panels and values in bfloat16, sums in float32 ---- */

#if defined(__x86_64__) && (defined(__clang__) ? __clang_major__ >= 9 : __GNUC__ >= 10)
#define HAS_HALF
#define HALF_TARGET \
    __attribute__((target("avx512f,avx512vl,avx512dq,avx512bw,avx512bf16,avx2,fma")))
#define HALF_PANEL 128
/* Lines of 64 bytes, 32 tokens each, of a panel row. */
#define HALF_LINES 4
#define EACH_LINE _Pragma("GCC unroll 4") for (int k = 0; k < lines; k++)

/* 32 tokens by 32 features, or the first of them. A line of the panel interleaves four of tokens 0
 * to 15 with four of 16 to 31, so that pairs of lines, unpacked, give tokens in their order. */
HALF_TARGET static inline __attribute__((always_inline)) void
half_block_in(const uint16_t *from, int64_t stride, int64_t num_tokens, int64_t num_features,
              char *panel, const int whole)
{
    static const uint16_t even[32] = {0,  2,  4,  6,  32, 34, 36, 38, 8,  10, 12,
                                      14, 40, 42, 44, 46, 16, 18, 20, 22, 48, 50,
                                      52, 54, 24, 26, 28, 30, 56, 58, 60, 62};
    __m512i evens = _mm512_loadu_si512(even), odds = _mm512_add_epi16(evens, _mm512_set1_epi16(1));
    __mmask32 there = num_features >= 32 ? ~0u : (1u << num_features) - 1;
    __m512 a[32];
    for (int half = 0; half < 32; half += 16) {
        _Pragma("GCC unroll 16") for (int i = half; i < half + 16; i++)
        {
            const uint16_t *row = from + i * stride;
            if (whole)
                a[i] = _mm512_loadu_ps(row);
            else
                a[i] = i < num_tokens ? _mm512_castsi512_ps(_mm512_maskz_loadu_epi16(there, row))
                                      : _mm512_setzero_ps();
        }
        transpose_registers_avx512_narrow(a + half);
    }
    _Pragma("GCC unroll 16") for (int i = 0; i < 16; i++)
    {
        __m512i x = _mm512_castps_si512(a[i]), y = _mm512_castps_si512(a[i + 16]);
        char *line = panel + 2 * i * HALF_LINES * LINE;
        if (whole || 2 * i < num_features)
            _mm512_storeu_si512(line, _mm512_permutex2var_epi16(x, evens, y));
        if (whole || 2 * i + 1 < num_features)
            _mm512_storeu_si512(line + HALF_LINES * LINE, _mm512_permutex2var_epi16(x, odds, y));
    }
}

HALF_TARGET static void half_transpose_in(const void *numbers, int64_t stride, int64_t num_tokens,
                                          int64_t num_features, void *panel)
{
    const uint16_t *from = numbers;
    for (int64_t r = 0; r < HALF_PANEL; r += 32)
        for (int64_t c = 0; c < num_features; c += 32) {
            char *to = (char *)panel + c * HALF_LINES * LINE + 2 * r;
            int64_t tokens = num_tokens > r ? num_tokens - r : 0;
            const uint16_t *block = from + (tokens ? r * stride + c : 0);
            for (int64_t i = 32; i < 64 && i < tokens; i++)
                __builtin_prefetch(block + i * stride, 0, 2);
            if (tokens >= 32 && c + 32 <= num_features)
                half_block_in(block, stride, 32, 32, to, 1);
            else
                half_block_in(block, stride, tokens, num_features - c, to, 0);
        }
}

/* Results to rows of bfloat16, 16 tokens by 32 features at a time. */
HALF_TARGET static void half_transpose_out(void *numbers, int64_t stride, int64_t num_tokens,
                                           int64_t num_features, const float *panel)
{
    uint16_t *to = numbers;
    for (int64_t c = 0; c < num_tokens; c += 16)
        for (int64_t r = 0; r < num_features; r += 32) {
            __m512 a[32];
            int64_t left = num_features - r, tokens = smaller(16, num_tokens - c);
            __mmask32 there = left >= 32 ? ~0u : (1u << left) - 1;
            for (int64_t i = 0; i < tokens; i++)
                __builtin_prefetch(to + (c + i) * stride + r + 64, 1, 3);
            for (int half = 0; half < 32; half += 16) {
                _Pragma("GCC unroll 16") for (int i = half; i < half + 16; i++)
                    a[i] = i < left ? _mm512_loadu_ps(panel + (r + i) * HALF_PANEL + c)
                                    : _mm512_setzero_ps();
                transpose_registers_avx512_narrow(a + half);
            }
            _Pragma("GCC unroll 16") for (int i = 0; i < 16; i++)
                if (i < tokens)
                    _mm512_mask_storeu_epi16(to + (c + i) * stride + r, there,
                                             (__m512i)_mm512_cvtne2ps_pbh(a[i + 16], a[i]));
        }
}

/* A product of pairs: two entries at once. */
#define ADD_PAIR(sums, first)                                                                      \
    {                                                                                              \
        int32_t two;                                                                               \
        memcpy(&two, value + (first), sizeof(two));                                                \
        __m512bh v = (__m512bh)_mm512_set1_epi32(two);                                             \
        const char *p = base + (int64_t)offset[first] * LINE;                                      \
        const char *q = base + (int64_t)offset[(first) + 1] * LINE;                                \
        EACH_LINE                                                                                  \
        {                                                                                          \
            __m512i x = _mm512_loadu_si512(p + k * LINE), y = _mm512_loadu_si512(q + k * LINE);    \
            __m512i low = _mm512_unpacklo_epi16(x, y), high = _mm512_unpackhi_epi16(x, y);         \
            sums[2 * k] = _mm512_dpbf16_ps(sums[2 * k], (__m512bh)low, v);                         \
            sums[2 * k + 1] = _mm512_dpbf16_ps(sums[2 * k + 1], (__m512bh)high, v);                \
        }                                                                                          \
    }

HALF_TARGET static inline __attribute__((always_inline)) void
half_multiply_some(const Structure *s, const uint16_t *value, int64_t t, int64_t begin, int64_t end,
                   const char *base, float *result, const float *bias, Ahead *ahead, const int chains,
                   const int lines)
{
    const int32_t *start = s->start + t * s->rows;
    const uint16_t *offset = s->offset;
    for (int64_t r = begin; r < end; r++) {
        int32_t i = start[r], stop = start[r + 1];
        look_ahead(ahead);
        float *out = result + r * HALF_PANEL;
        __m512 a[2 * HALF_LINES];
        if (t > 0) {
            if (i == stop)
                continue;
            EACH_LINE
            {
                a[2 * k] = _mm512_loadu_ps(out + 32 * k);
                a[2 * k + 1] = _mm512_loadu_ps(out + 32 * k + 16);
            }
        } else {
            __m512 initial = _mm512_set1_ps(bias ? bias[r] : 0.0f);
            EACH_LINE a[2 * k] = a[2 * k + 1] = initial;
        }
        if (chains == 2 && i + 3 < stop) {
            __m512 b[2 * HALF_LINES];
            EACH_LINE b[2 * k] = b[2 * k + 1] = _mm512_setzero_ps();
            for (; i + 3 < stop; i += 4) {
                ADD_PAIR(a, i)
                ADD_PAIR(b, i + 2)
            }
            EACH_LINE
            {
                a[2 * k] = _mm512_add_ps(a[2 * k], b[2 * k]);
                a[2 * k + 1] = _mm512_add_ps(a[2 * k + 1], b[2 * k + 1]);
            }
        }
        for (; i + 1 < stop; i += 2)
            ADD_PAIR(a, i)
        if (i < stop) {
            __m512bh v = (__m512bh)_mm512_set1_epi32(value[i]);
            const char *p = base + (int64_t)offset[i] * LINE;
            EACH_LINE
            {
                __m512i x = _mm512_loadu_si512(p + k * LINE), zero = _mm512_setzero_si512();
                a[2 * k] = _mm512_dpbf16_ps(a[2 * k], (__m512bh)_mm512_unpacklo_epi16(x, zero), v);
                a[2 * k + 1] =
                    _mm512_dpbf16_ps(a[2 * k + 1], (__m512bh)_mm512_unpackhi_epi16(x, zero), v);
            }
        }
        EACH_LINE
        {
            _mm512_storeu_ps(out + 32 * k, a[2 * k]);
            _mm512_storeu_ps(out + 32 * k + 16, a[2 * k + 1]);
        }
    }
}

#define HALF_MULTIPLY(name, chains)                                                                \
    HALF_TARGET static void name(const Structure *s, const void *value, int64_t t, int64_t begin,  \
                                 int64_t end, const void *tile, float *result, const float *bias,  \
                                 int64_t count, Ahead *ahead)                                      \
    FOR_PART(count, HALF_PANEL, 1, HALF_LINES, half_multiply_some, s, value, t, begin, end, tile,  \
             result, bias, ahead, chains)
HALF_MULTIPLY(half_multiply, 1)
HALF_MULTIPLY(half_multiply_two, 2)

HALF_TARGET static inline __attribute__((always_inline)) void
half_dot_some(const Structure *s, int64_t t, int64_t begin, int64_t end, const char *rows,
              const char *base, float *sum, const int lines)
{
    const int32_t *start = s->start + t * s->rows;
    const uint16_t *offset = s->offset;
    for (int64_t r = begin; r < end; r++) {
        int32_t i = start[r], stop = start[r + 1];
        if (i == stop)
            continue;
        __m512bh row[HALF_LINES];
        EACH_LINE row[k] = (__m512bh)_mm512_loadu_si512(rows + (r * HALF_LINES + k) * LINE);
        for (; i < stop; i += 8) {
            uint64_t offsets = load_offsets(offset + i), others = load_offsets(offset + i + 4);
            int several = i + 4 < stop;
            const char *p[8];
            __m512 a[8];
            _Pragma("GCC unroll 4") for (int n = 0; n < 4; n++)
            {
                p[n] = base + NTH_OFFSET(offsets, n);
                p[n + 4] = base + NTH_OFFSET(others, n);
                a[n] = a[n + 4] = _mm512_setzero_ps();
            }
            EACH_LINE
                _Pragma("GCC unroll 4") for (int n = 0; n < 4; n++) a[n] =
                    _mm512_dpbf16_ps(a[n], row[k], (__m512bh)_mm512_loadu_si512(p[n] + k * LINE));
            if (several)
                EACH_LINE
                    _Pragma("GCC unroll 4") for (int n = 4; n < 8; n++) a[n] =
                        _mm512_dpbf16_ps(a[n], row[k], (__m512bh)_mm512_loadu_si512(p[n] + k * LINE));
            __m256 sums = sums_of_eight_avx512_narrow((const vec_avx512_narrow *)a);
            if (i + 8 > stop) /* the others belong to the next row */
                sums = _mm256_and_ps(sums, _mm256_loadu_ps((const float *)(first_lanes + 8 - (stop - i))));
            _mm256_storeu_ps(sum + i, _mm256_add_ps(sums, _mm256_loadu_ps(sum + i)));
        }
    }
}

HALF_TARGET static void half_dot(const Structure *s, int64_t t, int64_t begin, int64_t end,
                                 const void *rows, const void *tile, float *sum, int64_t count)
FOR_PART(count, HALF_PANEL, 1, HALF_LINES, half_dot_some, s, t, begin, end, rows, tile, sum)

HALF_TARGET static void half_add_sums(const void *panel, int64_t rows, float *sum)
{
    __m512bh ones = (__m512bh)_mm512_set1_epi16(0x3f80);
    const char *line = panel;
    for (int64_t r = 0; r < rows; r++) {
        __m512 a = _mm512_setzero_ps();
        for (int k = 0; k < HALF_LINES; k++, line += LINE)
            a = _mm512_dpbf16_ps(a, (__m512bh)_mm512_loadu_si512(line), ones);
        sum[r] += _mm512_reduce_add_ps(a);
    }
}

#define HALF_KERNELS(multiply)                                                                     \
    {16, HALF_PANEL, HALF_LINES * LINE, 1, half_transpose_in, half_transpose_out, multiply,        \
     half_dot, half_add_sums, hash_avx512_narrow}
static const Kernels kernels_half = HALF_KERNELS(half_multiply);
static const Kernels kernels_half_two = HALF_KERNELS(half_multiply_two);
#endif

/* Asked for in place of 16, for tests: the panels of one kind of processor, whatever this one is. */
enum { WIDE_PANELS = 32, ONE_UNIT = 48, TWO_UNITS = 64 };

/* Writes the vendor's twelve letters and returns the family; empty and 0 where it is not told. */
int processor(char *vendor)
{
    int family = 0;
    memset(vendor, 0, 13);
#if defined(__x86_64__)
    unsigned a, b, c, d;
    if (__get_cpuid(0, &a, &b, &c, &d)) {
        memcpy(vendor, &b, 4), memcpy(vendor + 4, &d, 4), memcpy(vendor + 8, &c, 4);
        if (__get_cpuid(1, &a, &b, &c, &d))
            family = (a >> 8 & 15) + ((a >> 8 & 15) == 15 ? (int)(a >> 20 & 255) : 0);
    }
#endif
    return family;
}

#if defined(__x86_64__)
/* AMD's family, 25 for Zen 4 and 26 for Zen 5, or 0 for another vendor; asked once. */
static int amd_family(void)
{
    static int known = -1; /* threads that ask at once find the same */
    int family = __atomic_load_n(&known, __ATOMIC_RELAXED);
    if (family < 0) {
        char vendor[13];
        family = processor(vendor);
        family = strcmp(vendor, "AuthenticAMD") ? 0 : family;
        __atomic_store_n(&known, family, __ATOMIC_RELAXED);
    }
    return family;
}
#endif

static const Kernels *choose(int lanes)
{
#if defined(__x86_64__)
    __builtin_cpu_init();
    int wide = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") &&
               __builtin_cpu_supports("avx512dq");
    int middle = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    if (lanes >= 16 && wide) {
        if (lanes == 16)
            lanes = amd_family() == 25 ? ONE_UNIT : amd_family() == 26 ? TWO_UNITS : WIDE_PANELS;
        return lanes == ONE_UNIT    ? &kernels_avx512_narrow
               : lanes == TWO_UNITS ? &kernels_avx512_two
                                    : &kernels_avx512;
    }
    if (lanes >= 8 && middle)
        return &kernels_avx2;
#endif
    (void)lanes;
    return &kernels_portable;
}

/* The kernels for bfloat16, or NULL: they need its dot products, at the speed that Zen 4 and 5 have
 * them, and the panel rows of 256 bytes for which the offsets of a structure were made there. */
static const Kernels *choose_half(int lanes)
{
#ifdef HAS_HALF
    if (__builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512bf16")) {
        const Kernels *k = choose(lanes);
        return k == &kernels_avx512_narrow ? &kernels_half
               : k == &kernels_avx512_two  ? &kernels_half_two
                                           : NULL;
    }
#endif
    (void)lanes;
    return NULL;
}

/* Whether views of bfloat16 can be multiplied. */
int takes_half(int lanes) { return choose_half(lanes) != NULL; }

/* The vector width that runs when `lanes` is asked for: 16 (AVX-512), 8 (AVX2) or 4 (portable). */
int choose_lanes(int lanes) { return choose(lanes)->lanes; }

/* Instructions for bfloat16 products: 1 for AVX512_BF16, 2 for AMX_BF16, both added. */
int half_units(void)
{
    int units = 0;
#if defined(__x86_64__)
    unsigned a, b, c, d;
    if (__get_cpuid_count(7, 1, &a, &b, &c, &d))
        units += a >> 5 & 1;
    if (__get_cpuid_count(7, 0, &a, &b, &c, &d))
        units += 2 * (d >> 22 & 1);
#endif
    return units;
}

/* Tokens of a panel at that width. */
int choose_panel(int lanes) { return choose(lanes)->panel; }

/* ---- structure ---- */

/* A 64-bit fingerprint of a mask, so that a change is seen however it was made. */
uint64_t fingerprint(const uint8_t *mask, int64_t size)
{
    uint64_t h[HASHES], total = (uint64_t)size;
    int64_t whole = size - size % (8 * HASHES);
    for (int k = 0; k < HASHES; k++)
        h[k] = k + 1;
    choose(16)->hash(mask, whole, h);
    for (int64_t i = whole; i < size; i++)
        h[i % HASHES] = (h[i % HASHES] ^ mask[i]) * HASH_PRIME;
    for (int k = 0; k < HASHES; k++)
        total = (total ^ h[k]) * HASH_PRIME, total ^= total >> 29;
    return total;
}

/* Calls for every set byte among `size` contiguous ones; sparse words of eight cost one test. */
#define FOR_EACH_SET(bytes, size, index, body)                             \
    for (int64_t base_ = 0; base_ < (size); base_ += 8) {                  \
        uint64_t word_ = 0;                                                \
        memcpy(&word_, (bytes) + base_, (size)-base_ < 8 ? (size)-base_ : 8); \
        for (; word_; word_ &= word_ - 1) {                                \
            int64_t index = base_ + BYTE_OF(word_);                        \
            body                                                           \
        }                                                                  \
    }
#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
#define BYTE_OF(word) (__builtin_ctzll(word) >> 3)
#else
#define BYTE_OF(word) (7 - (__builtin_ctzll(word) >> 3))
#endif

/* Fills start, offset and position from a contiguous mask. */
void build(Structure *s, const uint8_t *mask)
{
    int by_column = s->by_column != 0;
    int64_t tiles = (s->columns + s->tile - 1) / s->tile;
    memset(s->start, 0, (tiles * s->rows + 1) * sizeof(int32_t));
    int32_t filled = 0;
    uint32_t row_lines = choose((int)s->lanes)->row_bytes / LINE;
    int32_t *next = by_column ? malloc((s->rows + 1) * sizeof(int32_t)) : NULL;
    for (int64_t t = 0; t < tiles; t++) {
        int64_t first = t * s->tile;
        int64_t width = s->columns - first < s->tile ? s->columns - first : s->tile;
        int32_t *start = s->start + t * s->rows;
        if (!by_column) {
            for (int64_t r = 0; r < s->rows; r++) {
                const uint8_t *bytes = mask + r * s->columns + first;
                __builtin_prefetch(bytes + 16 * s->columns);
                __builtin_prefetch(bytes + 16 * s->columns + 64);
                start[r] = filled;
                FOR_EACH_SET(bytes, width, c, {
                    s->offset[filled] = (uint16_t)(c * row_lines);
                    s->position[filled++] = (int32_t)(r * s->columns + first + c);
                })
            }
            continue;
        }
        memset(next, 0, (s->rows + 1) * sizeof(int32_t));
        for (int64_t c = 0; c < width; c++)
            FOR_EACH_SET(mask + (first + c) * s->rows, s->rows, r, { next[r]++; })
        for (int64_t r = 0; r < s->rows; r++) {
            int32_t count = next[r];
            start[r] = next[r] = filled;
            filled += count;
        }
        for (int64_t c = 0; c < width; c++)
            FOR_EACH_SET(mask + (first + c) * s->rows, s->rows, r, {
                int32_t i = next[r]++;
                s->offset[i] = (uint16_t)(c * row_lines);
                s->position[i] = (int32_t)((first + c) * s->rows + r);
            })
    }
    s->start[tiles * s->rows] = filled;
    memset(s->offset + filled, 0, 7 * sizeof(uint16_t));
    free(next);
}

/* ---- packing ---- */

static inline void copy(float *to, const float *from, int64_t size)
{
    int64_t i = 0;
    if (size >= 8) {
        for (; i + 8 < size; i += 8)
            memcpy(to + i, from + i, 32);
        memcpy(to + size - 8, from + size - 8, 32);
    } else if (size >= 4) {
        memcpy(to, from, 16);
        memcpy(to + size - 4, from + size - 4, 16);
    } else
        for (; i < size; i++)
            to[i] = from[i];
}

static inline void add(float *restrict to, const float *restrict from, int64_t size)
{
    for (int64_t i = 0; i < size; i++)
        to[i] += from[i];
}

#define MAX_PANEL 128

/* Tokens that are consecutive in one output row of a sliding window. */
typedef struct {
    int64_t first, size, image, y, x;
} Run;

static int64_t find_runs(const View *v, int64_t token, int64_t num_tokens, Run *run)
{
    int64_t area = v->out_height * v->out_width, num_runs = 0;
    for (int64_t done = 0; done < num_tokens; done += run[num_runs++].size) {
        int64_t image = (token + done) / area, place = (token + done) % area;
        int64_t row = place / v->out_width, col = place % v->out_width;
        run[num_runs] = (Run){done, smaller(v->out_width - col, num_tokens - done), image,
                              row * v->stride_h - v->pad_h, col * v->stride_w - v->pad_w};
    }
    return num_runs;
}

/* Copies windows into a panel, or adds them back to where they came from. */
static void window(const View *v, int64_t token, int64_t num_tokens, float *panel,
                   int64_t width, int add_back)
{
    Run runs[MAX_PANEL];
    int64_t num_runs = find_runs(v, token, num_tokens, runs), step = v->stride_w;
    int64_t taps = v->kernel_h * v->kernel_w;
    for (int64_t f = 0; f < v->features; f++, panel += width) {
        int64_t channel = f / taps, tap = f % taps;
        int64_t down = tap / v->kernel_w * v->dilation_h, right = tap % v->kernel_w * v->dilation_w;
        for (const Run *run = runs; run < runs + num_runs; run++) {
            float *p = panel + run->first;
            int64_t y = run->y + down, x = run->x + right, size = run->size;
            if (y < 0 || y >= v->height) {
                if (!add_back)
                    memset(p, 0, size * sizeof(float));
                continue;
            }
            float *line = (float *)v->data + ((run->image * v->channels + channel) * v->height + y) * v->width;
            int64_t begin = x >= 0 ? 0 : step == 1 ? -x : (step - 1 - x) / step;
            int64_t end = v->width - x;
            end = end <= 0 ? 0 : step == 1 ? end : (end + step - 1) / step;
            begin = smaller(begin, size), end = smaller(end, size);
            if (!add_back) {
                for (int64_t i = 0; i < begin; i++)
                    p[i] = 0.0f;
                for (int64_t i = end; i < size; i++)
                    p[i] = 0.0f;
            }
            if (step == 1 && add_back)
                add(line + x + begin, p + begin, end - begin);
            else if (step == 1)
                copy(p + begin, line + x + begin, end - begin);
            else if (add_back)
                for (int64_t i = begin; i < end; i++)
                    line[x + i * step] += p[i];
            else
                for (int64_t i = begin; i < end; i++)
                    p[i] = line[x + i * step];
        }
    }
}

/* Windows of one position, whose tokens are consecutive over the whole image. */
static void positions(const View *v, int64_t token, int64_t num_tokens, float *panel,
                      int64_t width, int add_back)
{
    int64_t area = v->out_height * v->out_width;
    for (int64_t done = 0, run; done < num_tokens; done += run) {
        int64_t image = (token + done) / area, place = (token + done) % area;
        run = smaller(area - place, num_tokens - done);
        float *map = (float *)v->data + image * v->channels * area + place, *p = panel + done;
        for (int64_t f = 0; f < v->features; f++, map += area, p += width)
            if (add_back)
                copy(map, p, run);
            else
                copy(p, map, run);
    }
}

static void unfold(const View *v, int64_t token, int64_t num_tokens, float *panel,
                   int64_t width, int add_back)
{
    int plain = v->kernel_h == 1 && v->kernel_w == 1 && v->stride_h == 1 && v->stride_w == 1 &&
                !v->pad_h && !v->pad_w;
    (plain ? positions : window)(v, token, num_tokens, panel, width, add_back);
}

/* The first of a view's numbers of a token. */
static void *at_token(const View *v, int64_t token)
{
    return (char *)v->data + token * v->stride * (v->half ? sizeof(uint16_t) : sizeof(float));
}

static void pack(const Kernels *k, const View *v, int64_t token, int64_t num_tokens, void *panel)
{
    if (v->kind == 0) {
        k->transpose_in(at_token(v, token), v->stride, num_tokens, v->features, panel);
        return;
    }
    if (num_tokens < k->panel)
        memset(panel, 0, v->features * k->row_bytes);
    unfold(v, token, num_tokens, panel, k->panel, 0);
}

static void unpack(const Kernels *k, const View *v, int64_t token, int64_t num_tokens,
                   const float *panel)
{
    if (v->kind == 0)
        k->transpose_out(at_token(v, token), v->stride, num_tokens, v->features, panel);
    else
        unfold(v, token, num_tokens, (float *)panel, k->panel, 1);
}

/* ---- driver ---- */

/* Scratch memory belongs to its thread and is kept: fresh pages would cost more than the packing.
 * PANELS is each thread's own; SHARED is lent by the calling thread to all of its team. */
enum { PANELS, SHARED };

static float *scratch(int use, int64_t floats)
{
    static _Thread_local float *memory[2];
    static _Thread_local int64_t size[2];
    if (floats > size[use]) {
        free(memory[use]);
        memory[use] = aligned_alloc(4096, (floats * sizeof(float) + 4095) / 4096 * 4096);
        size[use] = memory[use] ? floats : 0;
    }
    return memory[use];
}

/* Tokens of one thread: whole panels, or whole images, whose overlapping windows add up in place. */
static void share(const View *v, int64_t panel, int64_t *begin, int64_t *end)
{
    int64_t grain = v->kind == 0 ? panel : v->out_height * v->out_width;
    int64_t units = (v->tokens + grain - 1) / grain;
    int64_t threads = omp_get_num_threads(), index = omp_get_thread_num();
    *begin = smaller(units * index / threads * grain, v->tokens);
    *end = smaller(units * (index + 1) / threads * grain, v->tokens);
}

static int64_t num_tiles(const Structure *s) { return (s->columns + s->tile - 1) / s->tile; }

static int64_t num_nonzero(const Structure *s) { return s->start[num_tiles(s) * s->rows]; }

/* The memory of some tokens up to `end`, if it is one piece, so that it can be asked for early; what
 * would not stay in L2 is left out. */
static int64_t piece(const View *v, int64_t token, int64_t num_tokens, int64_t end, const char **start)
{
    int64_t size = smaller(num_tokens, end - token) * v->stride * (v->half ? 2 : 4);
    *start = at_token(v, token);
    return v->kind != 0 || v->stride != v->features || size < 0 ? 0 : smaller(size, AHEAD_BYTES);
}

/* Spreads what is to be asked for over the rows of a structure's tiles. */
static void set_pace(Ahead *ahead, const Structure *s)
{
    int64_t size = ahead->first_size > ahead->second_size ? ahead->first_size : ahead->second_size;
    int64_t visits = s->rows * num_tiles(s);
    ahead->at = 0;
    ahead->step = (size / LINE + visits - 1) / visits * LINE;
}

/* result = product with a packed panel of `count` tokens. */
static void product(const Kernels *k, const Structure *s, const void *value, const char *panel,
                    float *result, const float *bias, int64_t count, Ahead ahead)
{
    set_pace(&ahead, s);
    for (int64_t row = 0; row < s->rows; row += ROW_BLOCK)
        for (int64_t t = 0; t < num_tiles(s); t++)
            k->multiply(s, value, t, row, smaller(row + ROW_BLOCK, s->rows),
                        panel + t * s->tile * k->row_bytes, result, bias, count, &ahead);
}

/* sum[entry] += rows[its row] . columns[its column] over the `count` tokens of a panel. */
static void dots(const Kernels *k, const Structure *s, const char *rows, const char *columns,
                 float *sum, int64_t count)
{
    for (int64_t row = 0; row < s->rows; row += ROW_BLOCK)
        for (int64_t t = 0; t < num_tiles(s); t++)
            k->dot(s, t, row, smaller(row + ROW_BLOCK, s->rows), rows,
                   columns + t * s->tile * k->row_bytes, sum, count);
}

/* A weight or its gradient: `half` says that its numbers are bfloat16, `packed` that it holds the
 * unmasked ones alone, at which positions point then. */
typedef struct {
    void *data;
    int64_t half, packed;
} Dense;

static float widen(uint16_t half)
{
    uint32_t bits = (uint32_t)half << 16;
    float number;
    memcpy(&number, &bits, 4);
    return number;
}

/* To the nearest bfloat16, ties to even. */
static uint16_t narrow(float number)
{
    uint32_t bits;
    memcpy(&bits, &number, 4);
    uint32_t rounded = (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
    return number == number ? rounded : 0x7fc0;
}

/* One thread's share of the values, in the precision of the panels. */
static void gather(const Kernels *k, const Structure *s, Dense weight, void *value)
{
    int64_t threads = omp_get_num_threads(), index = omp_get_thread_num();
    int64_t begin = num_nonzero(s) * index / threads, end = num_nonzero(s) * (index + 1) / threads;
    const int32_t *position = s->position;
    const float *whole = weight.data;
    const uint16_t *half = weight.data;
    if (k->half && weight.half)
        for (int64_t i = begin; i < end; i++)
            ((uint16_t *)value)[i] = half[position[i]];
    else if (k->half)
        for (int64_t i = begin; i < end; i++)
            ((uint16_t *)value)[i] = narrow(whole[position[i]]);
    else if (weight.half)
        for (int64_t i = begin; i < end; i++)
            ((float *)value)[i] = widen(half[position[i]]);
    else
        for (int64_t i = begin; i < end; i++)
            ((float *)value)[i] = whole[position[i]];
}

/* Writes one thread's share of a gradient, stored as the rows of `s`: sums, and zeros if dense. The
 * partial sums of each thread follow those of the one before after `stride` floats. */
static void scatter(const Structure *s, const float *partial, int64_t stride, Dense gradient)
{
    int64_t threads = omp_get_num_threads(), index = omp_get_thread_num();
    int64_t end = s->rows * (index + 1) / threads;
    int64_t row_bytes = s->columns * (gradient.half ? sizeof(uint16_t) : sizeof(float));
    for (int64_t row = s->rows * index / threads; row < end;) {
        int64_t next = smaller(row + 8, end);
        if (!gradient.packed)
            memset((char *)gradient.data + row * row_bytes, 0, (next - row) * row_bytes);
        for (int64_t t = 0; t < num_tiles(s); t++) {
            const int32_t *start = s->start + t * s->rows;
            for (int32_t i = start[row]; i < start[next]; i++) {
                float total = partial[i];
                for (int64_t j = 1; j < threads; j++)
                    total += partial[j * stride + i];
                if (gradient.half)
                    ((uint16_t *)gradient.data)[s->position[i]] = narrow(total);
                else
                    ((float *)gradient.data)[s->position[i]] = total;
            }
        }
        row = next;
    }
}

static const Kernels *choose_for(const Structure *s, const View *in)
{
    return in->half ? choose_half((int)s->lanes) : choose((int)s->lanes);
}

/* out = in * W^T + bias; masked entries of a dense weight are never read. */
int multiply(const Structure *s, const Dense *weight, const View *in, const View *out,
             const float *bias, int num_threads)
{
    const Kernels *k = choose_for(s, in);
    if (!k)
        return 1;
    float *value = scratch(SHARED, num_nonzero(s) + 1);
    int failed = !value;
#pragma omp parallel num_threads(num_threads) if (num_threads > 1)
    {
        int64_t begin, end;
        int64_t input_bytes = s->columns * k->row_bytes;
        char *input = value ? (char *)scratch(PANELS, input_bytes / 4 + s->rows * k->panel) : NULL;
        float *result = (float *)(input + input_bytes);
        if (!input)
            failed = 1;
        if (value)
            gather(k, s, *weight, value);
#pragma omp barrier
        share(out->kind ? out : in, k->panel, &begin, &end);
        for (int64_t token = begin; input && token < end; token += k->panel) {
            int64_t count = smaller(k->panel, end - token);
            pack(k, in, token, count, input);
            Ahead ahead = {0};
            ahead.first_size = piece(in, token + k->panel, k->panel, end, &ahead.first);
            ahead.second_size = piece(out, token, k->panel, end, &ahead.second);
            product(k, s, value, input, result, bias, count, ahead);
            unpack(k, out, token, count, result);
        }
    }
    return failed;
}

/* The gradients of a product: in_gradient = out_gradient * W unless NULL, weight_gradient, with zeros
 * where masked if it is dense, and bias_gradient unless NULL. */
int gradients(const Structure *forward, const Structure *backward, const Dense *weight,
              const View *in, const View *out_gradient, const View *in_gradient,
              const Dense *weight_gradient, float *bias_gradient, int num_threads)
{
    const Kernels *k = choose_for(forward, in);
    if (!k)
        return 1;
    int64_t inputs = forward->columns, outputs = forward->rows, nonzero = num_nonzero(forward);
    /* Dot products may be taken from either side; the one in storage order scatters in order. */
    const Structure *stored = forward->by_column ? backward : forward;
    /* Threads keep off each other's lines, and the last group of eight sums may be incomplete. */
    int64_t stride = (nonzero + outputs + 7 + 15) / 16 * 16;
    float *value = scratch(SHARED, nonzero + 15 + num_threads * stride);
    float *partial = value + (nonzero + 15) / 16 * 16;
    int failed = !value;
#pragma omp parallel num_threads(num_threads) if (num_threads > 1)
    {
        int64_t begin, end, threads = omp_get_num_threads(), index = omp_get_thread_num();
        /* The packed input takes the place of its gradient, which has left by then. */
        char *input = value ? (char *)scratch(PANELS, inputs * k->panel + outputs * k->row_bytes / 4) : NULL;
        char *output = input + inputs * k->panel * sizeof(float);
        float *bias_sum = partial + index * stride, *sum = bias_sum + outputs;
        if (!input)
            failed = 1;
        if (value) {
            memset(bias_sum, 0, stride * sizeof(float));
            if (in_gradient)
                gather(k, backward, *weight, value);
        }
#pragma omp barrier
        share(out_gradient->kind ? out_gradient : in, k->panel, &begin, &end);
        for (int64_t token = begin; input && token < end; token += k->panel) {
            int64_t count = smaller(k->panel, end - token);
            pack(k, out_gradient, token, count, output);
            if (in_gradient) {
                Ahead ahead = {0};
                ahead.first_size = piece(in, token, k->panel, end, &ahead.first);
                ahead.second_size = piece(in_gradient, token, k->panel, end, &ahead.second);
                product(k, backward, value, output, (float *)input, NULL, count, ahead);
                unpack(k, in_gradient, token, count, (float *)input);
            }
            pack(k, in, token, count, input);
            if (stored == forward)
                dots(k, stored, output, input, sum, count);
            else
                dots(k, stored, input, output, sum, count);
            if (bias_gradient)
                k->add_sums(output, outputs, bias_sum);
        }
#pragma omp barrier
        if (value)
            scatter(stored, partial + outputs, stride, *weight_gradient);
        for (int64_t i = outputs * index / threads;
             value && bias_gradient && i < outputs * (index + 1) / threads; i++) {
            bias_gradient[i] = partial[i];
            for (int64_t j = 1; j < threads; j++)
                bias_gradient[i] += partial[j * stride + i];
        }
    }
    return failed;
}

#else /* ---- kernels of one instruction set ---- */

typedef float NAME(vec) __attribute__((vector_size(4 * LANES), aligned(4), may_alias));
/* Sums of four vectors, as four floats; each argument holds two that were shuffled and added. */
TARGET static inline __attribute__((always_inline)) FOUR NAME(sum_of_pairs)(VEC ab, VEC cd)
{
    VEC all = SHUFFLE(ab, cd, 0, 2, 0, 2) + SHUFFLE(ab, cd, 1, 3, 1, 3);
#if LANES == 4
    return all;
#elif LANES == 8
    return __builtin_shufflevector(all, all, 0, 1, 2, 3) +
           __builtin_shufflevector(all, all, 4, 5, 6, 7);
#else
    return __builtin_shufflevector(all, all, 0, 1, 2, 3) +
           __builtin_shufflevector(all, all, 4, 5, 6, 7) +
           __builtin_shufflevector(all, all, 8, 9, 10, 11) +
           __builtin_shufflevector(all, all, 12, 13, 14, 15);
#endif
}

/* SMALL_BLOCK rows and columns, transposed in registers. */
TARGET static inline __attribute__((always_inline)) void
NAME(transpose_small)(const float *from, int64_t from_stride, float *to, int64_t to_stride)
{
#if SMALL_BLOCK == 4
    FOUR a = *(const FOUR *)from, b = *(const FOUR *)(from + from_stride);
    FOUR c = *(const FOUR *)(from + 2 * from_stride), d = *(const FOUR *)(from + 3 * from_stride);
    FOUR e = __builtin_shufflevector(a, b, 0, 4, 1, 5), f = __builtin_shufflevector(c, d, 0, 4, 1, 5);
    FOUR g = __builtin_shufflevector(a, b, 2, 6, 3, 7), h = __builtin_shufflevector(c, d, 2, 6, 3, 7);
    *(FOUR *)to = __builtin_shufflevector(e, f, 0, 1, 4, 5);
    *(FOUR *)(to + to_stride) = __builtin_shufflevector(e, f, 2, 3, 6, 7);
    *(FOUR *)(to + 2 * to_stride) = __builtin_shufflevector(g, h, 0, 1, 4, 5);
    *(FOUR *)(to + 3 * to_stride) = __builtin_shufflevector(g, h, 2, 3, 6, 7);
#else
    typedef float eight __attribute__((vector_size(32), aligned(4), may_alias));
    eight a[8], b[8];
    /* Rows i and i + 4 share a vector, so the halves need no crossing later. */
    for (int i = 0; i < 4; i++)
        for (int half = 0; half < 2; half++) {
            FOUR low = *(const FOUR *)(from + i * from_stride + 4 * half);
            FOUR high = *(const FOUR *)(from + (i + 4) * from_stride + 4 * half);
            a[i + 4 * half] = __builtin_shufflevector(low, high, 0, 1, 2, 3, 4, 5, 6, 7);
        }
    for (int k = 0; k < 8; k += 4)
        for (int i = 0; i < 2; i++) {
            eight x = a[k + 2 * i], y = a[k + 2 * i + 1];
            b[k + 2 * i] = __builtin_shufflevector(x, y, 0, 8, 1, 9, 4, 12, 5, 13);
            b[k + 2 * i + 1] = __builtin_shufflevector(x, y, 2, 10, 3, 11, 6, 14, 7, 15);
        }
    for (int k = 0; k < 8; k += 4)
        for (int i = 0; i < 2; i++) {
            eight x = b[k + i], y = b[k + 2 + i];
            float *out = to + (k + 2 * i) * to_stride;
            *(eight *)out = __builtin_shufflevector(x, y, 0, 1, 8, 9, 4, 5, 12, 13);
            *(eight *)(out + to_stride) = __builtin_shufflevector(x, y, 2, 3, 10, 11, 6, 7, 14, 15);
        }
#endif
}

#if LANES == 16
/* 16 vectors, transposed in registers. */
TARGET static inline __attribute__((always_inline)) void NAME(transpose_registers)(__m512 *a)
{
    __m512 b[16];
    _Pragma("GCC unroll 8") for (int i = 0; i < 16; i += 2)
    {
        b[i] = _mm512_unpacklo_ps(a[i], a[i + 1]);
        b[i + 1] = _mm512_unpackhi_ps(a[i], a[i + 1]);
    }
    _Pragma("GCC unroll 4") for (int i = 0; i < 16; i += 4)
    {
        for (int j = 0; j < 2; j++) {
            __m512d x = _mm512_castps_pd(b[i + j]), y = _mm512_castps_pd(b[i + j + 2]);
            a[i + 2 * j] = _mm512_castpd_ps(_mm512_unpacklo_pd(x, y));
            a[i + 2 * j + 1] = _mm512_castpd_ps(_mm512_unpackhi_pd(x, y));
        }
    }
    /* a[i + j] has column 4 g + j of rows i to i + 3 in its group g of four lanes. */
    _Pragma("GCC unroll 4") for (int j = 0; j < 4; j++)
    {
        for (int half = 0; half < 16; half += 8) {
            b[half + j] = _mm512_shuffle_f32x4(a[half + j], a[half + 4 + j], 0x88);
            b[half + 4 + j] = _mm512_shuffle_f32x4(a[half + j], a[half + 4 + j], 0xdd);
        }
        for (int odd = 0; odd < 8; odd += 4) {
            __m512 x = b[odd + j], y = b[odd + 8 + j];
            a[odd + j] = _mm512_shuffle_f32x4(x, y, 0x88);
            a[odd + 8 + j] = _mm512_shuffle_f32x4(x, y, 0xdd);
        }
    }
}

/* 16 of each: whole cache lines, read and written once however far apart they lie. */
TARGET static inline __attribute__((always_inline)) void
NAME(transpose_lines)(const float *from, int64_t from_stride, float *to, int64_t to_stride)
{
    __m512 a[16];
    _Pragma("GCC unroll 16") for (int i = 0; i < 16; i++) a[i] = _mm512_loadu_ps(from + i * from_stride);
    NAME(transpose_registers)(a);
    _Pragma("GCC unroll 16") for (int i = 0; i < 16; i++) _mm512_storeu_ps(to + i * to_stride, a[i]);
}
#define TRANSPOSE_BLOCK NAME(transpose_lines)
#else
#define TRANSPOSE_BLOCK NAME(transpose_small)
#endif

/* What whole blocks leave: to[column][row] = from[row][column]. */
TARGET static void NAME(transpose_edges)(const float *from, int64_t from_stride, int64_t rows,
                                         int64_t columns, float *to, int64_t to_stride)
{
    int64_t done_rows = rows - rows % BLOCK, done_columns = columns - columns % BLOCK;
#if BLOCK > SMALL_BLOCK
    if (columns - done_columns >= SMALL_BLOCK) {
        for (int64_t r = 0; r < done_rows; r += SMALL_BLOCK)
            NAME(transpose_small)(from + r * from_stride + done_columns, from_stride,
                                  to + done_columns * to_stride + r, to_stride);
        done_columns += SMALL_BLOCK;
    }
    if (rows - done_rows >= SMALL_BLOCK) {
        for (int64_t c = 0; c + SMALL_BLOCK <= done_columns; c += SMALL_BLOCK)
            NAME(transpose_small)(from + done_rows * from_stride + c, from_stride,
                                  to + c * to_stride + done_rows, to_stride);
        done_rows += SMALL_BLOCK;
    }
#endif
    for (int64_t r = 0; r < rows; r++)
        for (int64_t c = r < done_rows ? done_columns : 0; c < columns; c++)
            to[c * to_stride + r] = from[r * from_stride + c];
}

/* Tokens are far apart, which hardware prefetchers follow badly: the next ones are asked for. */
TARGET static void NAME(transpose_in)(const void *numbers, int64_t stride, int64_t num_tokens,
                                      int64_t num_features, void *packed)
{
    const float *from = numbers;
    float *panel = packed;
    if (num_tokens < PANEL)
        memset(panel, 0, num_features * PANEL * sizeof(float));
    for (int64_t r = 0; r + BLOCK <= num_tokens; r += BLOCK)
        for (int64_t c = 0; c + BLOCK <= num_features; c += BLOCK) {
            if (c % 16 == 0)
                for (int64_t i = 0; i < BLOCK; i++)
                    __builtin_prefetch(from + (r + BLOCK + i) * stride + c, 0, 2);
            TRANSPOSE_BLOCK(from + r * stride + c, stride, panel + c * PANEL + r, PANEL);
        }
    NAME(transpose_edges)(from, stride, num_tokens, num_features, panel, PANEL);
}

/* Whole rows of the output, in full lines, which are fetched before they are overwritten. */
TARGET static void NAME(transpose_out)(void *numbers, int64_t stride, int64_t num_tokens,
                                       int64_t num_features, const float *panel)
{
    float *to = numbers;
    for (int64_t c = 0; c + BLOCK <= num_tokens; c += BLOCK)
        for (int64_t r = 0; r + BLOCK <= num_features; r += BLOCK) {
            if (r % 16 == 0)
                for (int64_t i = 0; i < BLOCK; i++)
                    __builtin_prefetch(to + (c + i) * stride + r + 32, 1, 3);
            TRANSPOSE_BLOCK(panel + r * PANEL + c, PANEL, to + c * stride + r, stride);
        }
    NAME(transpose_edges)(panel, PANEL, num_features, num_tokens, to, stride);
}

/* The same four values in each group of four lanes. */
TARGET static inline __attribute__((always_inline)) VEC NAME(repeat)(const float *p)
{
#if LANES == 4
    return LOAD(p);
#elif LANES == 8
    return (VEC)_mm256_broadcast_ps((const __m128 *)p);
#else
    return (VEC)_mm512_broadcast_f32x4(_mm_loadu_ps(p));
#endif
}

/* The product over the first `vectors` vectors of each panel row, a constant. A token's sum has the
 * same order whatever tokens are beside it. */
TARGET static inline __attribute__((always_inline)) void
NAME(multiply_some)(const Structure *s, const float *value, int64_t t, int64_t begin, int64_t end,
                    const float *tile, float *result, const float *bias, Ahead *ahead,
                    const int vectors)
{
    const int32_t *start = s->start + t * s->rows;
    const uint16_t *offset = s->offset;
    const char *base = (const char *)tile;
    for (int64_t r = begin; r < end; r++) {
        int32_t i = start[r], stop = start[r + 1];
        look_ahead(ahead);
        float *out = result + r * PANEL;
        VEC a[VECTORS], zero = {0};
        if (t > 0) {
            if (i == stop)
                continue;
            EACH_VECTOR if (k < vectors) a[k] = LOAD(out + k * LANES);
        } else {
            VEC initial = zero + (bias ? bias[r] : 0.0f);
            EACH_VECTOR a[k] = initial;
        }
        VEC b[VECTORS];
        int has_two = CHAINS == 2 && i + 3 < stop;
        if (has_two)
            EACH_VECTOR b[k] = zero;
        for (; i + 3 < stop; i += 4) {
            uint64_t offsets = load_offsets(offset + i);
            VEC values = NAME(repeat)(value + i);
            ADD_ENTRY(a, 0)
            ADD_ENTRY(SECOND_SUMS, 1)
            ADD_ENTRY(a, 2)
            ADD_ENTRY(SECOND_SUMS, 3)
        }
        if (has_two)
            EACH_VECTOR if (k < vectors) a[k] += b[k];
        if (i + 1 < stop) {
            const float *p = PANEL_ROW(i), *q = PANEL_ROW(i + 1);
            float v = value[i], w = value[i + 1];
            EACH_VECTOR if (k < vectors) a[k] += v * LOAD(p + k * LANES);
            EACH_VECTOR if (k < vectors) a[k] += w * LOAD(q + k * LANES);
            i += 2;
        }
        if (i < stop) {
            const float *p = PANEL_ROW(i);
            float v = value[i];
            EACH_VECTOR if (k < vectors) a[k] += v * LOAD(p + k * LANES);
        }
        EACH_VECTOR if (k < vectors) STORE(out + k * LANES, a[k]);
    }
}

/* result[row] (+)= sum of value * tile[offset] over the entries of one tile, rows begin .. end, for
 * the first `count` tokens of the panel. */
TARGET static void NAME(multiply)(const Structure *s, const void *value, int64_t t, int64_t begin,
                                  int64_t end, const void *tile, float *result,
                                  const float *bias, int64_t count, Ahead *ahead)
FOR_PART(count, PANEL, 1, VECTORS, NAME(multiply_some), s, value, t, begin, end, tile, result, bias,
         ahead)

TARGET static inline __attribute__((always_inline)) VEC NAME(pair)(VEC a, VEC b)
{
    return SHUFFLE(a, b, 0, 1, 0, 1) + SHUFFLE(a, b, 2, 3, 2, 3);
}

#if LANES == 16
/* Sums of eight vectors. */
TARGET static inline __attribute__((always_inline)) __m256 NAME(sums_of_eight)(const VEC *a)
{
    __m512 halves[2];
    for (int h = 0; h < 2; h++) {
        VEC ab = NAME(pair)(a[4 * h], a[4 * h + 1]), cd = NAME(pair)(a[4 * h + 2], a[4 * h + 3]);
        halves[h] = (__m512)(SHUFFLE(ab, cd, 0, 2, 0, 2) + SHUFFLE(ab, cd, 1, 3, 1, 3));
    }
    __m512 x = _mm512_add_ps(_mm512_shuffle_f32x4(halves[0], halves[1], 0x88),
                             _mm512_shuffle_f32x4(halves[0], halves[1], 0xdd));
    return _mm512_castps512_ps256(
        _mm512_add_ps(_mm512_shuffle_f32x4(x, x, 0x88), _mm512_shuffle_f32x4(x, x, 0xdd)));
}
#endif

/* The dot products over the first `vectors` vectors of each panel row, a constant. */
TARGET static inline __attribute__((always_inline)) void
NAME(dot_some)(const Structure *s, int64_t t, int64_t begin, int64_t end, const float *rows,
               const float *tile, float *sum, const int vectors)
{
    const int32_t *start = s->start + t * s->rows;
    const uint16_t *offset = s->offset;
    const char *base = (const char *)tile;
    for (int64_t r = begin; r < end; r++) {
        int32_t i = start[r], stop = start[r + 1];
        if (i == stop)
            continue;
        VEC row[VECTORS];
        EACH_VECTOR if (k < vectors)
        {
            row[k] = LOAD(rows + r * PANEL + k * LANES);
            KEEP_IN_REGISTER(row[k]);
        }
#if LANES == 16
        for (; i + 4 < stop; i += 8) {
            uint64_t offsets = load_offsets(offset + i), others = load_offsets(offset + i + 4);
            const float *p[8];
            VEC a[8];
            EACH_ENTRY
            {
                p[n] = (const float *)(base + NTH_OFFSET(offsets, n));
                p[n + 4] = (const float *)(base + NTH_OFFSET(others, n));
            }
            _Pragma("GCC unroll 8") for (int n = 0; n < 8; n++) a[n] = row[0] * LOAD(p[n]);
            _Pragma("GCC unroll 8") for (int k = 1; k < vectors; k++)
                _Pragma("GCC unroll 8") for (int n = 0; n < 8; n++) a[n] += row[k] * LOAD(p[n] + k * LANES);
            __m256 sums = NAME(sums_of_eight)(a);
            if (i + 8 > stop) /* the others belong to the next row */
                sums = _mm256_and_ps(sums, _mm256_loadu_ps((const float *)(first_lanes + 8 - (stop - i))));
            _mm256_storeu_ps(sum + i, _mm256_add_ps(sums, _mm256_loadu_ps(sum + i)));
        }
#endif
        for (; i < stop; i += 4) {
            uint64_t offsets = load_offsets(offset + i);
            const float *p[4];
            VEC even[4], odd[4]; /* two chains each: one would wait for every addition */
            EACH_ENTRY
            {
                p[n] = (const float *)(base + NTH_OFFSET(offsets, n));
                even[n] = row[0] * LOAD(p[n]);
                odd[n] = row[1] * LOAD(p[n] + LANES);
            }
            _Pragma("GCC unroll 8") for (int k = 2; k < vectors; k += 2) EACH_ENTRY
            {
                even[n] += row[k] * LOAD(p[n] + k * LANES);
                odd[n] += row[k + 1] * LOAD(p[n] + (k + 1) * LANES);
            }
            EACH_ENTRY even[n] += odd[n];
            FOUR sums = NAME(sum_of_pairs)(NAME(pair)(even[0], even[1]), NAME(pair)(even[2], even[3]));
            if (i + 4 > stop) /* the others belong to the next row */
                sums = (FOUR)((FOUR_MASKS)sums & *(const FOUR_MASKS *)(first_lanes + 8 - (stop - i)));
            *(FOUR *)(sum + i) += sums;
        }
    }
}

/* sum[entry] += rows[its row] . tile[offset] over the entries of one tile, rows begin .. end, over
 * the first `count` tokens of the panel. */
TARGET static void NAME(dot)(const Structure *s, int64_t t, int64_t begin, int64_t end,
                             const void *rows, const void *tile, float *sum, int64_t count)
FOR_PART(count, PANEL, 2, VECTORS, NAME(dot_some), s, t, begin, end, rows, tile, sum)

/* sum[row] += the sum of its tokens. */
TARGET static void NAME(add_sums)(const void *packed, int64_t rows, float *sum)
{
    const float *panel = packed;
    for (int64_t r = 0; r < rows; r++, panel += PANEL) {
        VEC a = LOAD(panel);
        for (int k = 1; k < VECTORS; k++)
            a += LOAD(panel + k * LANES);
        a = NAME(pair)(a, a);
        sum[r] += NAME(sum_of_pairs)(a, a)[0];
    }
}

TARGET static void NAME(hash)(const uint8_t *bytes, int64_t size, uint64_t *hash)
{
    uint64_t h[HASHES], word[HASHES];
    memcpy(h, hash, sizeof(h));
    for (int64_t i = 0; i < size; i += sizeof(word)) {
        memcpy(word, bytes + i, sizeof(word));
        for (int k = 0; k < HASHES; k++) {
            h[k] = (h[k] ^ word[k]) * HASH_PRIME;
            h[k] = h[k] << 29 | h[k] >> 35;
        }
    }
    memcpy(hash, h, sizeof(h));
}

static const Kernels NAME(kernels) = {
    LANES, PANEL, PANEL * sizeof(float), 0, NAME(transpose_in), NAME(transpose_out),
    NAME(multiply), NAME(dot), NAME(add_sums), NAME(hash)};

#undef SUFFIX
#undef TRANSPOSE_BLOCK

#endif
