// packing.c - packs rows and columns into panels (packing.h).
#include "cpu/ops/product/packing.h"

#include <string.h>

#include "base/fp16.h"
#include "base/thread.h"

#define SUPER_MAX 256 // elements of the largest quantized block
#define MR_MAX GB_PACKED_ROWS_MAX
#define NR_MAX GB_PACKED_COLUMNS_MAX

// --------------------------------------------------------------------------------------------------------------- sizes

// Floats of the temporary buffer. It holds a stretch of terms of each row of a panel, or all blocks of one term that a
// chunk of columns overlaps.
enum { BUFFER = GB_BLOCKED_TERMS * NR_MAX };
_Static_assert(GB_BLOCKED_TERMS >= SUPER_MAX && GB_BLOCKED_COLUMNS + 2 * SUPER_MAX <= BUFFER, "blocks fit");
_Static_assert(MR_MAX >= GB_GEMM_MR_MAX, "panels of all kinds fit");
_Static_assert(GB_BLOCKED_TERMS % GB_BF16_STEP == 0, "a panel of pairs has whole steps of twice as many terms");
_Static_assert(GB_BLOCKED_COLUMNS % NR_MAX == 0 && GB_BLOCKED_COLUMNS_BYTES % NR_MAX == 0, "chunks have whole tiles");
_Static_assert(GB_BLOCKED_COLUMNS_PAIRS % NR_MAX == 0, "as do those of pairs");
_Static_assert(GB_BLOCKED_TERMS_PAIRS % GB_BLOCKED_TERMS_BYTES == 0,
    "pairs of quantized weights are whole stretches of bytes");

// A column of bytes has up to 3/8 of a float for each term: its level, and the scale and minimum of 16 terms.
_Static_assert(3 * GB_BLOCKED_TERMS_BYTES * GB_BLOCKED_COLUMNS_BYTES <= 8 * GB_BLOCKED_TERMS * GB_BLOCKED_COLUMNS &&
                   2 * 3 * GB_BLOCKED_TERMS_BYTES * NR_MAX <= 8 * BUFFER,
    "a thread's memory holds a chunk of bytes, and the columns of a tile before and after they are packed");
_Static_assert(GB_BLOCKED_TERMS_BYTES <= GB_PACK_COLUMNS_MAX && GB_BLOCKED_TERMS_BYTES <= GB_UNPACK_MAX,
    "kernels take a stretch of bytes at a time");
#define GB_FORMAT(id, stem, name, elements, ...)                                                      \
    _Static_assert((elements) <= SUPER_MAX && SUPER_MAX % (elements) == 0, name " has small blocks"); \
    _Static_assert(GB_BLOCKED_TERMS_BYTES % (elements) == 0, "stretches are whole blocks of " name);
#include "tensor/quant/formats.def"
#undef GB_FORMAT

static bool is_quantized(const struct gb_gemm * p) {
    return ggml_is_quantized(p->w.type) || ggml_is_quantized(p->x.type);
}

static gb_once once = GB_ONCE_INIT;
static bool has_tiles; // a level of this processor multiplies pairs of bfloat16 far faster than bytes

static void look_for_tiles(void) {
    for (int i = 0; i < gb_level_count(); i++) {
        has_tiles |= gb_level_at(i)->kernels->bf16_tiles && gb_level_at(i)->usable();
    }
}

struct gb_packing_limits gb_packing_limits_of(const struct gb_gemm * p) {
    gb_call_once(&once, look_for_tiles);
    const bool quantized = is_quantized(p), bf16 = p->w.type == GGML_TYPE_BF16;
    const bool tiles = has_tiles && (ggml_is_quantized(p->w.type) || bf16);
    const bool any_pairs = has_tiles && (bf16 || gb_bytes_decline(p) == NULL);
    const int64_t pairs = p->k / 2 + GB_BF16_STEP, bytes = gb_bytes_row_floats(p->k, GB_BYTES_HALVES);
    const size_t floats = GB_BLOCKED_TERMS * GB_BLOCKED_COLUMNS;
    return (struct gb_packing_limits){
        .rows = any_pairs ? GB_PACKED_ROWS_MAX : GB_GEMM_MR_MAX,
        .row = gb_bytes_decline(p) != NULL ? p->k + GB_BF16_STEP
               : has_tiles                 ? GB_MAX(bytes, pairs)
                                           : bytes,
        .stretch = GB_MIN(GB_BLOCKED_TERMS, GB_BLOCKED_TERMS_BYTES) / SUPER_MAX * SUPER_MAX,
        .columns = tiles ? GB_BLOCKED_COLUMNS_PAIRS : GB_MAX(GB_BLOCKED_COLUMNS, GB_BLOCKED_COLUMNS_BYTES),
        .chunk = tiles ? GB_MAX(floats, GB_BLOCKED_TERMS_PAIRS / 2 * GB_BLOCKED_COLUMNS_PAIRS) : floats,
        .buffer = quantized || bf16 ? BUFFER : 0,
    };
}

struct gb_packing gb_packing_floats(const struct gb_kernels * kernels, const struct gb_gemm * p) {
    return (struct gb_packing){ .kernels = kernels,
        .as = GB_PACKED_FLOATS,
        .mr = kernels->gemm_mr,
        .nr = kernels->gemm_nr,
        .stretch = is_quantized(p) ? GB_BLOCKED_TERMS / SUPER_MAX * SUPER_MAX : GB_BLOCKED_TERMS,
        .columns = GB_BLOCKED_COLUMNS };
}

struct gb_packing gb_packing_bytes(const struct gb_kernels * kernels, const struct gb_gemm * p) {
    return (struct gb_packing){ .kernels = kernels,
        .as = GB_PACKED_BYTES,
        .unpack = gb_unpack_of(kernels, p->w.type),
        .mr = kernels->gemm_q8_mr,
        .nr = kernels->gemm_q8_nr,
        .stretch = GB_BLOCKED_TERMS_BYTES,
        .columns = GB_BLOCKED_COLUMNS_BYTES };
}

struct gb_packing gb_packing_pairs(const struct gb_kernels * kernels, const struct gb_gemm * p) {
    return (struct gb_packing){ .kernels = kernels,
        .as = GB_PACKED_PAIRS,
        .unpack = ggml_is_quantized(p->w.type) ? gb_unpack_of(kernels, p->w.type) : (struct gb_unpack){ 0 },
        .mr = kernels->bf16_mr,
        .nr = kernels->bf16_nr,
        .step = kernels->bf16_step,
        .stretch = kernels->bf16_tiles ? GB_BLOCKED_TERMS_PAIRS : 2 * GB_BLOCKED_TERMS,
        .columns = kernels->bf16_tiles ? GB_BLOCKED_COLUMNS_PAIRS : GB_BLOCKED_COLUMNS };
}

// The number of pairs of k terms, padded with zeros.
static int64_t padded_pairs(const struct gb_packing * packing, int64_t k) {
    return gb_div_up(k, 2 * packing->step) * packing->step;
}

int64_t gb_packed_tile_terms(const struct gb_packing * packing, int64_t k) {
    return packing->as == GB_PACKED_PAIRS ? padded_pairs(packing, k) : k;
}

int64_t gb_packed_row_floats(const struct gb_packing * packing, int64_t k) {
    return packing->as == GB_PACKED_BYTES ? gb_bytes_row_floats(k, packing->unpack.kind)
                                          : gb_packed_tile_terms(packing, k);
}

int64_t gb_packed_column_floats(const struct gb_packing * packing, int64_t k) {
    return packing->as == GB_PACKED_BYTES ? gb_bytes_column_floats(k, &packing->unpack)
                                          : gb_packed_tile_terms(packing, k);
}

void gb_packed_tile(const struct gb_packing * packing, const struct gb_tile * t) {
    switch (packing->as) {
        case GB_PACKED_BYTES: packing->kernels->gemm_tile_q8(gb_bytes_tile_kind(&packing->unpack), t); break;
        case GB_PACKED_PAIRS: packing->kernels->gemm_tile_bf16(t); break;
        case GB_PACKED_FLOATS: packing->kernels->gemm_tile_f32(t); break;
    }
}

// -------------------------------------------------------------------------------------------------------------- floats

static float element(enum ggml_type type, const char * p) {
    switch (type) {
        case GGML_TYPE_F16: return ggml_fp16_to_fp32(*(const ggml_fp16_t *) p);
        case GGML_TYPE_BF16: return gb_bf16_to_f32(*(const uint16_t *) p);
        default: return *(const float *) p;
    }
}

static void widen(const struct gb_kernels * k, enum ggml_type type, int64_t n, float * y, const char * x) {
    switch (type) {
        case GGML_TYPE_F16: k->f16_to_f32(n, y, (const uint16_t *) x); break;
        case GGML_TYPE_BF16: k->bf16_to_f32(n, y, (const uint16_t *) x); break;
        default: memcpy(y, x, (size_t) n * sizeof(float)); break;
    }
}

static bool are_adjacent(const void * const * rows, int n, size_t step) {
    for (int i = 1; i < n; i++) {
        if ((const char *) rows[i] != (const char *) rows[0] + (size_t) i * step) {
            return false;
        }
    }
    return true;
}

static void pack_blocks(const struct gb_kernels * kernels, enum ggml_type type, int64_t k, int n, int width, float * y,
    const void * const * rows, float * buf) {
    const void * x[NR_MAX];
    for (int i = 0; i < n; i++) {
        x[i] = buf + i * k;
        gb_gemm_dequantize(type, rows[i], k, buf + i * k);
    }
    kernels->pack_f32(k, n, width, y, x);
}

// y[j * width + i] = rows[i][j], zero for i >= n. buf: BUFFER floats if the operand is quantized.
static void pack_floats(const struct gb_kernels * kernels, const struct gb_gemm_operand * o, int64_t k, int n,
    int width, float * y, const void * const * rows, float * buf) {
    if (ggml_is_quantized(o->type)) {
        pack_blocks(kernels, o->type, k, n, width, y, rows, buf);
        return;
    }
    if (gb_gemm_is_dense(o)) {
        gb_pack_of(kernels, o->type)(k, n, width, y, rows);
        return;
    }
    const bool adjacent = are_adjacent(rows, n, ggml_type_size(o->type));
    if (adjacent && o->type == GGML_TYPE_F32 && o->nb_k % sizeof(float) == 0) {
        kernels->pack_terms_f32(k, n, width, y, rows[0], (int64_t) (o->nb_k / sizeof(float)));
        return;
    }
    for (int64_t j = 0; j < k; j++, y += width) {
        const size_t offset = (size_t) j * o->nb_k;
        if (adjacent) {
            widen(kernels, o->type, n, y, (const char *) rows[0] + offset);
        } else {
            for (int i = 0; i < n; i++) {
                y[i] = element(o->type, (const char *) rows[i] + offset);
            }
        }
        memset(y + n, 0, (size_t) (width - n) * sizeof(float));
    }
}

// ----------------------------------------------------------------------------------------------------- bytes and pairs

// Packs rows of floats into a panel of pairs of bfloat16, padded with zeros. With quantized weights
// the rows are limited to the range of bytes, so that a row is NaN at all levels or at none.
static void pack_rounded(const struct gb_packing * packing, int64_t k, int n, float * y, const void * const * rows,
    float * buf) {
    // terms of a row before the next row, because rows share cache lines and pages
    enum { PIECE = 8 * 2 * GB_BF16_STEP };
    const int64_t pairs = padded_pairs(packing, k), step = packing->step, mr = packing->mr;
    struct gb_round_bf16 row = { .limited = packing->unpack.fn != NULL };
    if (step == 1) {
        const void * x[MR_MAX];
        for (int i = 0; i < n; i++) {
            x[i] = buf + i * pairs;
            row.k = row.together = k;
            row.y = (uint16_t *) (buf + i * pairs);
            row.x = rows[i];
            packing->kernels->round_bf16(&row);
        }
        packing->kernels->pack_f32(pairs, n, packing->mr, y, x);
        return;
    }
    if (n < mr || 2 * pairs > k) {
        memset(y, 0, (size_t) (pairs * mr) * sizeof(float));
    }
    row.together = 2 * step;
    row.stride = 2 * step * mr;
    for (int64_t j = 0; j < k; j += PIECE) {
        for (int i = 0; i < n; i++) {
            row.k = GB_MIN(k - j, PIECE);
            row.y = (uint16_t *) (y + j / 2 * mr + i * step);
            row.x = (const float *) rows[i] + j;
            packing->kernels->round_bf16(&row);
        }
    }
}

// Packs quantized columns into a panel of pairs, some terms at a time, through a panel of bytes.
static void pack_quantized_pairs(const struct gb_packing * packing, const struct gb_gemm_operand * w, int64_t kc, int n,
    float * y, const void ** rows, float * buffer) {
    const struct gb_unpack * const unpack = &packing->unpack;
    const int nr = packing->nr;
    for (int64_t k0 = 0, k; k0 < kc; k0 += k) {
        k = GB_MIN(kc - k0, GB_BLOCKED_TERMS_BYTES);
        float * const bytes = buffer;
        float * const buf = bytes + nr * gb_bytes_column_floats(k, unpack);
        gb_bytes_pack_columns(packing->kernels, unpack, w->type, k, n, nr, bytes, rows, buf);
        packing->kernels->bytes_to_bf16(&(struct gb_bytes_to_bf16){
            .k = k,
            .kind = gb_bytes_tile_kind(unpack),
            .zero = unpack->zero,
            .x = bytes,
            .y = y + k0 / 2 * nr,
        });
        for (int i = 0; i < n; i++) {
            rows[i] = (const char *) rows[i] + gb_gemm_term_offset(w, k);
        }
    }
}

// Packs columns of bfloat16 into a panel of pairs, padded with zeros.
static void pack_pairs(const struct gb_packing * packing, int64_t kc, int n, float * y, const void * const * rows) {
    const int nr = packing->nr;
    const int64_t pairs = padded_pairs(packing, kc);
    packing->kernels->pack_f32(kc / 2, n, nr, y, rows); // pairs as floats
    memset(y + kc / 2 * nr, 0, (size_t) ((pairs - kc / 2) * nr) * sizeof(float));
}

// -------------------------------------------------------------------------------------------------------------- panels

void gb_pack_rows(const struct gb_packing * packing, const struct gb_gemm_operand * x, int64_t k, int n, float * y,
    const void * const * rows, float * buffer) {
    switch (packing->as) {
        case GB_PACKED_BYTES: gb_bytes_pack_rows(packing->kernels, &packing->unpack, k, n, packing->mr, y, rows); break;
        case GB_PACKED_PAIRS: pack_rounded(packing, k, n, y, rows, buffer); break;
        case GB_PACKED_FLOATS: pack_floats(packing->kernels, x, k, n, packing->mr, y, rows, buffer); break;
    }
}

void gb_pack_columns(const struct gb_packing * packing, const struct gb_gemm_operand * w, int64_t k, int n, float * y,
    const void ** columns, float * buffer) {
    const struct gb_kernels * kernels = packing->kernels;
    switch (packing->as) {
        case GB_PACKED_BYTES:
            gb_bytes_pack_columns(kernels, &packing->unpack, w->type, k, n, packing->nr, y, columns, buffer);
            break;
        case GB_PACKED_PAIRS:
            if (packing->unpack.fn != NULL) {
                pack_quantized_pairs(packing, w, k, n, y, columns, buffer);
            } else {
                pack_pairs(packing, k, n, y, columns);
            }
            break;
        case GB_PACKED_FLOATS: pack_floats(kernels, w, k, n, packing->nr, y, columns, buffer); break;
    }
}

void gb_pack_columns_across(const struct gb_packing * packing, const struct gb_gemm_operand * w, int64_t k,
    int64_t first, int n, float * y, const char * data, size_t nb, float * buffer) {
    const int64_t size = ggml_blck_size(w->type);
    const int nr = packing->nr;
    const int64_t block = first / size, end = gb_div_up(first + n, size);
    for (int64_t t = 0; t < k; t++) { // all blocks of a term that overlap the columns
        const char * blocks = data + gb_gemm_term_offset(w, t) + (size_t) block * nb;
        gb_gemm_dequantize(w->type, blocks, (end - block) * size, buffer);
        const float * x = buffer + (first - block * size);
        for (int j = 0; j < n; j += nr) {
            float * panel = y + (size_t) j * (size_t) k + (size_t) t * (size_t) nr;
            const int valid = GB_MIN(nr, n - j);
            memcpy(panel, x + j, (size_t) valid * sizeof(float));
            memset(panel + valid, 0, (size_t) (nr - valid) * sizeof(float));
        }
    }
}
