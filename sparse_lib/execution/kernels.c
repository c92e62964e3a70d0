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
 * says that the weight is stored [columns][rows]. */
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

/* Short copies, of which a call takes most of the time. */
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

#define INLINE static inline __attribute__((always_inline))

INLINE void look_ahead(Ahead *a)
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
#define FOR_PART(count, least, parts, kernel, ...)                                                 \
    {                                                                                              \
        if ((count) > PANEL / 2)                                                                   \
            kernel(__VA_ARGS__, parts);                                                            \
        else if ((count) > PANEL / 4)                                                              \
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

/* ---- words of the kernels of one instruction set and precision ---- */

#define VEC NAME(vec)
#define VEC_BYTES (4 * LANES)
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
#define SPREAD GLUE(SPREAD_, LANES)
#define SHUFFLE(x, y, a, b, c, d) __builtin_shufflevector(x, y, GLUE(GROUPS_, LANES)(a, b, c, d))

/* Every other group of four lanes of both, from the first or the second one on. */
#define HALF_OF_8(x, y, n)                                                                       \
    __builtin_shufflevector(x, y, 4 * (n), 4 * (n) + 1, 4 * (n) + 2, 4 * (n) + 3, 4 * (n) + 8, \
                            4 * (n) + 9, 4 * (n) + 10, 4 * (n) + 11)
#define HALF_OF_16(x, y, n) (VEC) _mm512_shuffle_f32x4((__m512)(x), (__m512)(y), (n) ? 0xdd : 0x88)
#define HALF_OF GLUE(HALF_OF_, LANES)

typedef float FOUR __attribute__((vector_size(16), aligned(4), may_alias));
typedef int32_t FOUR_MASKS __attribute__((vector_size(16), aligned(4), may_alias));

#define EACH_LANE _Pragma("GCC unroll 16") for (int i = 0; i < LANES; i++)
#define EACH_ENTRY _Pragma("GCC unroll 4") for (int n = 0; n < 4; n++)

/* The vectors of one panel row. Loops over them must unroll for the array to live in registers. */
#define EACH_VECTOR _Pragma("GCC unroll 8") for (int k = 0; k < VECTORS; k++)

/* Those of every other entry. */
#define SECOND_SUMS GLUE(SUMS_, CHAINS)
#define SUMS_1 a
#define SUMS_2 b

/* Words of float32; those of bfloat16 are below. */
#define HALF 0
#define NUMBER float /* of panels and values */
#define FACTORS VEC  /* a vector of these */
#define SIDE LANES   /* of a block that is transposed, in features and tokens of the input */
#define ADD_ENTRY(sums, n)                                                   \
    {                                                                        \
        const char *p = base + NTH_OFFSET(offsets, n);                       \
        VEC v = SPREAD(values, n);                                           \
        EACH_VECTOR if (k < vectors) sums[k] += v * LOAD(p + k * VEC_BYTES); \
    }
#define ADD_FOUR(i)                                  \
    {                                                \
        uint64_t offsets = load_offsets(offset + i); \
        VEC values = NAME(repeat)(value + i);        \
        ADD_ENTRY(a, 0)                              \
        ADD_ENTRY(SECOND_SUMS, 1)                    \
        ADD_ENTRY(a, 2)                              \
        ADD_ENTRY(SECOND_SUMS, 3)                    \
    }
#define ADD_ONE(i)                                                        \
    {                                                                     \
        const char *p = base + (int64_t)offset[i] * LINE;                 \
        float v = value[i];                                               \
        EACH_VECTOR if (k < vectors) a[k] += v * LOAD(p + k * VEC_BYTES); \
    }
#define ADD_TWO(i) ADD_ONE(i) ADD_ONE(i + 1)
#define FIRST_PRODUCT(x, p) ((x) * LOAD(p))
#define ADD_PRODUCT(a, x, p) ((a) + (x) * LOAD(p))
#define ADD_LINE(a, p) ((a) + LOAD(p))
#define TOTAL(a) NAME(sum_of_pairs)(NAME(pair)(a, a), NAME(pair)(a, a))[0]

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
#undef VECTORS
#undef TARGET

#if defined(__clang__) ? __clang_major__ >= 9 : __GNUC__ >= 10
/* Words of bfloat16: sums are float32, and two entries one product of pairs. */
#undef HALF
#undef NUMBER
#undef FACTORS
#undef SIDE
#undef ADD_FOUR
#undef ADD_ONE
#undef ADD_TWO
#undef FIRST_PRODUCT
#undef ADD_PRODUCT
#undef ADD_LINE
#undef TOTAL
#define HALF 1
#define NUMBER uint16_t
#define FACTORS __m512bh
#define SIDE 32
/* The second entry's line is `second`, at which q may point. */
#define ADD_PAIR(sums, i, v, second)                                                             \
    {                                                                                            \
        const char *p = base + (int64_t)offset[i] * LINE;                                        \
        EACH_VECTOR if (k < vectors / 2)                                                         \
        {                                                                                        \
            __m512i x = _mm512_loadu_si512(p + k * LINE), y = second;                            \
            __m512i low = _mm512_unpacklo_epi16(x, y), high = _mm512_unpackhi_epi16(x, y);       \
            sums[2 * k] = (VEC)_mm512_dpbf16_ps((__m512)sums[2 * k], (__m512bh)low, v);          \
            sums[2 * k + 1] = (VEC)_mm512_dpbf16_ps((__m512)sums[2 * k + 1], (__m512bh)high, v); \
        }                                                                                        \
    }
#define ADD_BOTH(sums, i)                                           \
    {                                                               \
        int32_t two;                                                \
        memcpy(&two, value + (i), sizeof(two));                     \
        __m512bh v = (__m512bh)_mm512_set1_epi32(two);              \
        const char *q = base + (int64_t)offset[(i) + 1] * LINE;     \
        ADD_PAIR(sums, i, v, _mm512_loadu_si512(q + k * LINE))      \
    }
#define ADD_FOUR(i) ADD_BOTH(a, i) ADD_BOTH(SECOND_SUMS, i + 2)
#define ADD_TWO(i) ADD_BOTH(a, i)
#define ADD_ONE(i) ADD_PAIR(a, i, (__m512bh)_mm512_set1_epi32(value[i]), _mm512_setzero_si512())
#define FIRST_PRODUCT(x, p) ADD_PRODUCT(_mm512_setzero_ps(), x, p)
#define ADD_PRODUCT(a, x, p) \
    (VEC) _mm512_dpbf16_ps((__m512)(a), x, (__m512bh)_mm512_loadu_si512(p))
#define ADD_LINE(a, p) ADD_PRODUCT(a, (__m512bh)_mm512_set1_epi16(0x3f80), p)
#define TOTAL(a) _mm512_reduce_add_ps((__m512)(a))

#define VECTORS 8
#define TARGET \
    __attribute__((target("avx512f,avx512vl,avx512dq,avx512bw,avx512bf16,avx2,fma")))
#define SUFFIX _half_two
#include "kernels.c"
#undef CHAINS

#define CHAINS 1
#define SUFFIX _half
#include "kernels.c"
#endif
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

/* AMD's family, 25 for Zen 4 and 26 for Zen 5, or 0 for another vendor; to ask takes long. */
static int amd_family;
__attribute__((constructor)) static void ask_processor(void)
{
    char vendor[13];
    int family = processor(vendor);
    amd_family = strcmp(vendor, "AuthenticAMD") ? 0 : family;
}

static const Kernels *choose(int lanes)
{
#if defined(__x86_64__)
    __builtin_cpu_init();
    int wide = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") &&
               __builtin_cpu_supports("avx512dq");
    int middle = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    if (lanes >= 16 && wide) {
        if (lanes == 16)
            lanes = amd_family == 25 ? ONE_UNIT : amd_family == 26 ? TWO_UNITS : WIDE_PANELS;
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
#if HALF
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
    uint64_t h[HASHES], word[HASHES], total = (uint64_t)size;
    int64_t i = 0;
    for (int k = 0; k < HASHES; k++)
        h[k] = k + 1;
    for (; i + (int64_t)sizeof(word) <= size; i += sizeof(word)) {
        memcpy(word, mask + i, sizeof(word));
        for (int k = 0; k < HASHES; k++) {
            h[k] = (h[k] ^ word[k]) * HASH_PRIME;
            h[k] = h[k] << 29 | h[k] >> 35;
        }
    }
    for (; i < size; i++)
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

/* Fills start, offset and position from a contiguous mask, [rows][columns]. */
void build(Structure *s, const uint8_t *mask)
{
    int64_t tiles = (s->columns + s->tile - 1) / s->tile;
    int64_t row_step = s->by_column ? 1 : s->columns, column_step = s->by_column ? s->rows : 1;
    int32_t filled = 0;
    uint32_t row_lines = choose((int)s->lanes)->row_bytes / LINE;
    for (int64_t t = 0; t < tiles; t++) {
        int64_t first = t * s->tile, width = smaller(s->columns - first, s->tile);
        for (int64_t r = 0; r < s->rows; r++) {
            const uint8_t *bytes = mask + r * s->columns + first;
            __builtin_prefetch(bytes + 16 * s->columns);
            __builtin_prefetch(bytes + 16 * s->columns + 64);
            s->start[t * s->rows + r] = filled;
            FOR_EACH_SET(bytes, width, c, {
                s->offset[filled] = (uint16_t)(c * row_lines);
                s->position[filled++] = (int32_t)(r * row_step + (first + c) * column_step);
            })
        }
    }
    s->start[tiles * s->rows] = filled;
    memset(s->offset + filled, 0, 7 * sizeof(uint16_t));
}

/* ---- packing ---- */

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
static void window(const View *v, int64_t token, int64_t num_tokens, float *panel, int64_t width,
                   int add_back)
{
    Run runs[MAX_PANEL];
    int64_t num_runs = find_runs(v, token, num_tokens, runs), step = v->stride_w;
    int64_t channel = 0, down = 0, right = 0; /* of the feature */
    for (int64_t f = 0; f < v->features; f++, panel += width) {
        for (const Run *run = runs; run < runs + num_runs; run++) {
            float *p = panel + run->first;
            int64_t y = run->y + down * v->dilation_h, x = run->x + right * v->dilation_w;
            int64_t size = run->size;
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
            if (step == 1 && !add_back)
                copy(p + begin, line + x + begin, end - begin);
            else if (add_back)
                for (int64_t i = begin; i < end; i++)
                    line[x + i * step] += p[i];
            else
                for (int64_t i = begin; i < end; i++)
                    p[i] = line[x + i * step];
        }
        if (++right == v->kernel_w)
            right = 0, down++;
        if (down == v->kernel_h)
            down = 0, channel++;
    }
}

/* Windows of one position, whose tokens are consecutive over the whole image. */
static void positions(const View *v, int64_t token, int64_t num_tokens, float *panel,
                      int64_t width, int back)
{
    int64_t area = v->out_height * v->out_width;
    for (int64_t done = 0, run; done < num_tokens; done += run) {
        int64_t image = (token + done) / area, place = (token + done) % area;
        run = smaller(area - place, num_tokens - done);
        float *map = (float *)v->data + image * v->channels * area + place, *p = panel + done;
        for (int64_t f = 0; f < v->features; f++, map += area, p += width)
            if (back)
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
    if (num_tokens < k->panel)
        memset(panel, 0, v->features * k->row_bytes);
    if (v->kind == 0)
        k->transpose_in(at_token(v, token), v->stride, num_tokens, v->features, panel);
    else
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
    const uint16_t *half = weight.data;
#define EACH(to, number) \
    for (int64_t i = begin; i < end; i++) \
        ((to *)value)[i] = number
    if (k->half && weight.half)
        EACH(uint16_t, half[s->position[i]]);
    else if (k->half)
        EACH(uint16_t, narrow(((float *)weight.data)[s->position[i]]));
    else if (weight.half)
        EACH(float, widen(half[s->position[i]]));
    else
        EACH(float, ((float *)weight.data)[s->position[i]]);
#undef EACH
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

#else /* ---- kernels of one instruction set and precision ---- */

typedef float NAME(vec) __attribute__((vector_size(VEC_BYTES), aligned(4), may_alias));

/* LANES vectors, transposed in registers: each step takes the even and the odd ones of what
 * two vectors hold, at first lanes within groups of four, then the groups. */
TARGET INLINE void NAME(sort_lanes)(const VEC *from, VEC *to)
{
    EACH_LANE
    {
        const VEC *pair = from + i / 4 * 4 + i % 2 * 2;
        to[i] = i % 4 < 2 ? SHUFFLE(pair[0], pair[1], 0, 2, 0, 2)
                          : SHUFFLE(pair[0], pair[1], 1, 3, 1, 3);
    }
}

#if LANES > 4
TARGET INLINE void NAME(sort_groups)(const VEC *from, VEC *to)
{
    EACH_LANE
    {
        const VEC *pair = from + i % (LANES / 2) / 4 * 8 + i % 4;
        to[i] = i < LANES / 2 ? HALF_OF(pair[0], pair[4], 0) : HALF_OF(pair[0], pair[4], 1);
    }
}
#endif

TARGET INLINE void NAME(transpose_registers)(VEC *a)
{
    VEC b[LANES];
    NAME(sort_lanes)(a, b);
    NAME(sort_lanes)(b, a);
#if LANES > 4
    NAME(sort_groups)(a, b);
#if LANES == 16
    NAME(sort_groups)(b, a);
#else
    EACH_LANE a[i] = b[i];
#endif
#endif
}

#if !HALF
/* to[column][row] = from[row][column]. */
TARGET INLINE void NAME(transpose_whole)(const float *from, int64_t from_stride, float *to,
                                         int64_t to_stride)
{
    VEC a[LANES];
    EACH_LANE a[i] = LOAD(from + i * from_stride);
    NAME(transpose_registers)(a);
    EACH_LANE STORE(to + i * to_stride, a[i]);
}

/* The same for the first LANES rows and columns, or those that there are. */
TARGET INLINE void NAME(transpose_block)(const float *from, int64_t from_stride, int64_t rows,
                                         int64_t columns, float *to, int64_t to_stride)
{
    if (rows >= LANES && columns >= LANES) {
        NAME(transpose_whole)(from, from_stride, to, to_stride);
        return;
    }
    float in[LANES * LANES], out[LANES * LANES];
    rows = smaller(rows, LANES), columns = smaller(columns, LANES);
    for (int64_t r = 0; r < rows; r++)
        copy(in + r * LANES, from + r * from_stride, columns);
    NAME(transpose_whole)(in, LANES, out, LANES);
    for (int64_t c = 0; c < columns; c++)
        copy(to + c * to_stride, out + c * LANES, rows);
}

TARGET INLINE void NAME(block_in)(const float *from, int64_t stride, int64_t num_tokens,
                                  int64_t num_features, float *panel)
{
    NAME(transpose_block)(from, stride, num_tokens, num_features, panel, PANEL);
}

TARGET INLINE void NAME(block_out)(const float *panel, int64_t num_features, int64_t num_tokens,
                                   float *to, int64_t stride)
{
    NAME(transpose_block)(panel, PANEL, num_features, num_tokens, to, stride);
}

/* The same four values in each group of four lanes. */
TARGET INLINE VEC NAME(repeat)(const float *p)
{
#if LANES == 4
    return LOAD(p);
#elif LANES == 8
    return (VEC)_mm256_broadcast_ps((const __m128 *)p);
#else
    return (VEC)_mm512_broadcast_f32x4(_mm_loadu_ps(p));
#endif
}
#else
/* 32 tokens by 32 features, or the first of them. A line of the panel interleaves four of tokens 0
 * to 15 with four of 16 to 31, so that pairs of lines, unpacked, give tokens in their order. */
TARGET INLINE void NAME(block)(const uint16_t *from, int64_t stride, int64_t num_tokens,
                               int64_t num_features, uint16_t *panel, const int whole)
{
    static const uint16_t even[32] = {0,  2,  4,  6,  32, 34, 36, 38, 8,  10, 12,
                                      14, 40, 42, 44, 46, 16, 18, 20, 22, 48, 50,
                                      52, 54, 24, 26, 28, 30, 56, 58, 60, 62};
    __m512i evens = _mm512_loadu_si512(even), odds = _mm512_add_epi16(evens, _mm512_set1_epi16(1));
    __mmask32 there = num_features >= 32 ? ~0u : (1u << num_features) - 1;
    VEC a[32];
    for (int half = 0; half < 32; half += 16) {
        _Pragma("GCC unroll 16") for (int i = half; i < half + 16; i++)
        {
            if (whole)
                a[i] = LOAD(from + i * stride);
            else
                a[i] = i < num_tokens ? (VEC)_mm512_maskz_loadu_epi16(there, from + i * stride)
                                      : (VEC)_mm512_setzero_ps();
        }
        NAME(transpose_registers)(a + half);
    }
    EACH_LANE
    {
        __m512i x = (__m512i)a[i], y = (__m512i)a[i + 16];
        uint16_t *line = panel + 2 * i * PANEL;
        if (whole || 2 * i < num_features)
            _mm512_storeu_si512(line, _mm512_permutex2var_epi16(x, evens, y));
        if (whole || 2 * i + 1 < num_features)
            _mm512_storeu_si512(line + PANEL, _mm512_permutex2var_epi16(x, odds, y));
    }
}

TARGET INLINE void NAME(block_in)(const uint16_t *from, int64_t stride, int64_t num_tokens,
                                  int64_t num_features, uint16_t *panel)
{
    if (num_tokens >= 32 && num_features >= 32)
        NAME(block)(from, stride, 32, 32, panel, 1);
    else
        NAME(block)(from, stride, num_tokens, num_features, panel, 0);
}

/* Results to rows of bfloat16, 16 tokens by 32 features. */
TARGET INLINE void NAME(block_out)(const float *panel, int64_t num_features, int64_t num_tokens,
                                   uint16_t *to, int64_t stride)
{
    VEC a[32];
    __mmask32 there = num_features >= 32 ? ~0u : (1u << num_features) - 1;
    for (int half = 0; half < 32; half += 16) {
        _Pragma("GCC unroll 16") for (int i = half; i < half + 16; i++)
            a[i] = i < num_features ? LOAD(panel + i * PANEL) : (VEC)_mm512_setzero_ps();
        NAME(transpose_registers)(a + half);
    }
    EACH_LANE if (i < num_tokens)
        _mm512_mask_storeu_epi16(to + i * stride, there,
                                 (__m512i)_mm512_cvtne2ps_pbh((__m512)a[i + 16], (__m512)a[i]));
}
#endif

/* Tokens are far apart, which hardware prefetchers follow badly: the next ones are asked for. */
TARGET static void NAME(transpose_in)(const void *numbers, int64_t stride, int64_t num_tokens,
                                      int64_t num_features, void *panel)
{
    for (int64_t r = 0; r < num_tokens; r += SIDE)
        for (int64_t c = 0; c < num_features; c += SIDE) {
            const NUMBER *from = (const NUMBER *)numbers + r * stride + c;
            int64_t left = num_tokens - r;
            if (c * sizeof(NUMBER) % LINE == 0)
                for (int64_t i = SIDE; i < 2 * SIDE && i < left; i++)
                    __builtin_prefetch(from + i * stride, 0, 2);
            NAME(block_in)(from, stride, left, num_features - c, (NUMBER *)panel + c * PANEL + r);
        }
}

/* Whole rows of the output, in full lines, which are fetched before they are overwritten. */
TARGET static void NAME(transpose_out)(void *numbers, int64_t stride, int64_t num_tokens,
                                       int64_t num_features, const float *panel)
{
    for (int64_t c = 0; c < num_tokens; c += LANES)
        for (int64_t r = 0; r < num_features; r += SIDE) {
            NUMBER *to = (NUMBER *)numbers + c * stride + r;
            int64_t left = num_tokens - c;
            if (r * sizeof(NUMBER) % LINE == 0)
                for (int64_t i = 0; i < LANES && i < left; i++)
                    __builtin_prefetch((char *)(to + i * stride) + 2 * LINE, 1, 3);
            NAME(block_out)(panel + r * PANEL + c, num_features - r, left, to, stride);
        }
}

/* The product over the first `vectors` vectors of each row of sums, a constant. A token's sum has
 * the same order whatever tokens are beside it. */
TARGET INLINE void NAME(multiply_some)(const Structure *s, const NUMBER *value, int64_t t,
                                       int64_t begin, int64_t end, const char *base, float *result,
                                       const float *bias, Ahead *ahead, const int vectors)
{
    const int32_t *start = s->start + t * s->rows;
    const uint16_t *offset = s->offset;
    for (int64_t r = begin; r < end; r++) {
        int32_t i = start[r], stop = start[r + 1];
        look_ahead(ahead);
        float *out = result + r * PANEL;
        VEC a[VECTORS], b[VECTORS], zero = {0};
        if (t > 0) {
            if (i == stop)
                continue;
            EACH_VECTOR if (k < vectors) a[k] = LOAD(out + k * LANES);
        } else {
            VEC initial = zero + (bias ? bias[r] : 0.0f);
            EACH_VECTOR a[k] = initial;
        }
        int has_two = CHAINS == 2 && i + 3 < stop;
        if (has_two)
            EACH_VECTOR b[k] = zero;
        for (; i + 3 < stop; i += 4) {
            ADD_FOUR(i)
        }
        if (has_two)
            EACH_VECTOR if (k < vectors) a[k] += b[k];
        if (i + 1 < stop) {
            ADD_TWO(i)
            i += 2;
        }
        if (i < stop)
            ADD_ONE(i)
        EACH_VECTOR if (k < vectors) STORE(out + k * LANES, a[k]);
    }
}

/* result[row] (+)= sum of value * tile[offset] over the entries of one tile, rows begin .. end, for
 * the first `count` tokens of the panel. */
TARGET static void NAME(multiply)(const Structure *s, const void *value, int64_t t, int64_t begin,
                                  int64_t end, const void *tile, float *result,
                                  const float *bias, int64_t count, Ahead *ahead)
FOR_PART(count, 1, VECTORS, NAME(multiply_some), s, value, t, begin, end, tile, result, bias, ahead)

TARGET INLINE VEC NAME(pair)(VEC a, VEC b)
{
    return SHUFFLE(a, b, 0, 1, 0, 1) + SHUFFLE(a, b, 2, 3, 2, 3);
}

/* Sums of four vectors, as four floats; each argument holds two that were shuffled and added. */
TARGET INLINE FOUR NAME(sum_of_pairs)(VEC ab, VEC cd)
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

#if LANES == 16
/* Sums of eight vectors. */
TARGET INLINE __m256 NAME(sums_of_eight)(const VEC *a)
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
TARGET INLINE void NAME(dot_some)(const Structure *s, int64_t t, int64_t begin, int64_t end,
                                  const char *rows, const char *base, float *sum,
                                  const int vectors)
{
    const int32_t *start = s->start + t * s->rows;
    const uint16_t *offset = s->offset;
    for (int64_t r = begin; r < end; r++) {
        int32_t i = start[r], stop = start[r + 1];
        if (i == stop)
            continue;
        FACTORS row[VECTORS];
        EACH_VECTOR if (k < vectors)
        {
            row[k] = (FACTORS)LOAD(rows + r * PANEL * sizeof(NUMBER) + k * VEC_BYTES);
            KEEP_IN_REGISTER(row[k]);
        }
#if LANES == 16
        for (; i + (HALF ? 0 : 4) < stop; i += 8) {
            uint64_t offsets = load_offsets(offset + i), others = load_offsets(offset + i + 4);
            int several = i + 4 < stop;
            const char *p[8];
            VEC a[8];
            EACH_ENTRY
            {
                p[n] = base + NTH_OFFSET(offsets, n);
                p[n + 4] = base + NTH_OFFSET(others, n);
                a[n] = FIRST_PRODUCT(row[0], p[n]);
                a[n + 4] = several ? (VEC)FIRST_PRODUCT(row[0], p[n + 4]) : (VEC){0};
            }
            _Pragma("GCC unroll 8") for (int k = 1; k < vectors; k++)
            {
                EACH_ENTRY a[n] = ADD_PRODUCT(a[n], row[k], p[n] + k * VEC_BYTES);
                if (several)
                    EACH_ENTRY a[n + 4] = ADD_PRODUCT(a[n + 4], row[k], p[n + 4] + k * VEC_BYTES);
            }
            __m256 sums = NAME(sums_of_eight)(a);
            if (i + 8 > stop) /* the others belong to the next row */
                sums = _mm256_and_ps(sums, _mm256_loadu_ps((const float *)(first_lanes + 8 - (stop - i))));
            _mm256_storeu_ps(sum + i, _mm256_add_ps(sums, _mm256_loadu_ps(sum + i)));
        }
#endif
#if !HALF
        for (; i < stop; i += 4) {
            uint64_t offsets = load_offsets(offset + i);
            const char *p[4];
            VEC even[4], odd[4]; /* two chains each: one would wait for every addition */
            EACH_ENTRY
            {
                p[n] = base + NTH_OFFSET(offsets, n);
                even[n] = row[0] * LOAD(p[n]);
                odd[n] = row[1] * LOAD(p[n] + VEC_BYTES);
            }
            _Pragma("GCC unroll 8") for (int k = 2; k < vectors; k += 2) EACH_ENTRY
            {
                even[n] += row[k] * LOAD(p[n] + k * VEC_BYTES);
                odd[n] += row[k + 1] * LOAD(p[n] + (k + 1) * VEC_BYTES);
            }
            EACH_ENTRY even[n] += odd[n];
            FOUR sums = NAME(sum_of_pairs)(NAME(pair)(even[0], even[1]), NAME(pair)(even[2], even[3]));
            if (i + 4 > stop) /* the others belong to the next row */
                sums = (FOUR)((FOUR_MASKS)sums & *(const FOUR_MASKS *)(first_lanes + 8 - (stop - i)));
            *(FOUR *)(sum + i) += sums;
        }
#endif
    }
}

/* sum[entry] += rows[its row] . tile[offset] over the entries of one tile, rows begin .. end, over
 * the first `count` tokens of the panel. */
TARGET static void NAME(dot)(const Structure *s, int64_t t, int64_t begin, int64_t end,
                             const void *rows, const void *tile, float *sum, int64_t count)
FOR_PART(count, HALF ? 1 : 2, HALF ? VECTORS / 2 : VECTORS, NAME(dot_some), s, t, begin, end, rows,
         tile, sum)

/* sum[row] += the sum of its tokens. */
TARGET static void NAME(add_sums)(const void *panel, int64_t rows, float *sum)
{
    const char *line = panel;
    for (int64_t r = 0; r < rows; r++) {
        VEC a = {0};
        for (size_t k = 0; k < PANEL * sizeof(NUMBER) / VEC_BYTES; k++, line += VEC_BYTES)
            a = ADD_LINE(a, line);
        sum[r] += TOTAL(a);
    }
}

static const Kernels NAME(kernels) = {
    LANES, PANEL, PANEL * sizeof(NUMBER), HALF, NAME(transpose_in),
    NAME(transpose_out), NAME(multiply), NAME(dot), NAME(add_sums)};

#undef SUFFIX

#endif
