// test_kernels_few.h - the kernels for few rows: interleaved quantized columns, columns of floats,
// short columns of Q8_0. test_kernels.c includes it after test_kernels_bytes.h, whose helpers it
// uses.
#ifndef GB_TESTS_TEST_KERNELS_FEW_H
#define GB_TESTS_TEST_KERNELS_FEW_H

// --------------------------------------------------------------------------------------------------------- interleaved

struct interleaved_format {
    enum ggml_type type;
    unpack_fn unpack;
    int group, zero;
};

enum {
#define GB_FORMAT(id, stem, name, elements, bytes, group, zero, top, use, ...) GB_IF_UNPACKED_##use(INTERLEAVED_##id, )
#include "tensor/quant/formats.def"
#undef GB_FORMAT
    INTERLEAVED_FORMATS_N,
    INTERLEAVED_TERMS_MAX = 8192 + 512
};

static const struct interleaved_format * interleaved_formats(void) {
    static struct interleaved_format formats[INTERLEAVED_FORMATS_N];
    const struct interleaved_format all[INTERLEAVED_FORMATS_N] = {
#define GB_FORMAT(id, stem, name, elements, bytes, group, zero, top, use, ...) \
    GB_IF_UNPACKED_##use({ GGML_TYPE_##id, scalar->unpack_##stem, group, zero }, )
#include "tensor/quant/formats.def"
#undef GB_FORMAT
    };
    memcpy(formats, all, sizeof(all));
    return formats;
}

static int interleaved_kind(const struct interleaved_format * f) {
    return (f->group == 16 ? GB_BYTES_HALVES : 0) | (f->zero != 0 ? GB_BYTES_CENTERED : 0);
}

// The place of term i in a column, in units of words of 16 groups.
static size_t interleaved_term(int64_t i, int group) {
    const int64_t unit = i / (16 * group), in = i % (16 * group);
    return (size_t) (unit * (group == 16 ? 384 : 640) + in % group / 4 * 64 + in / group * 4 + in % 4);
}

// The first or second float of group g.
static float interleaved_float(const char * p, int64_t g, int group, int which) {
    float f;
    memcpy(&f, p + g / 16 * (group == 16 ? 384 : 640) + group * 16 + which * 64 + g % 16 * 4, sizeof(f));
    return f;
}

// The size of a column of full units.
static size_t units_size(int64_t k, int group) { return (size_t) (k / (16 * group) * (group == 16 ? 384 : 640)); }

// The parts of a tail: the largest power of two that fits, then the smallest one that holds the
// rest. If the rest is more than half of the first part, the first part is twice as large. Returns
// the number of parts.
static int tail_parts(int64_t groups, int64_t parts[2]) {
    int64_t first = 1, second = 0;
    while (2 * first <= groups) {
        first *= 2;
    }
    for (second = groups > first; second > 0 && second < groups - first;) {
        second *= 2;
    }
    parts[0] = second == first ? 2 * first : first;
    parts[1] = second == first ? 0 : second;
    return groups == 0 ? 0 : parts[1] > 0 ? 2 : 1;
}

// The size of a row: a unit for each part of its tail.
static size_t row_units_size(int64_t k, int group) {
    int64_t parts[2];
    return units_size(k, group) + (size_t) tail_parts(k % (16 * group) / group, parts) * (group == 16 ? 384 : 640);
}

// The group at a place of a row of `groups` groups; -1: padding. A unit repeats a part of the tail.
static int64_t group_at(int64_t g, int64_t groups) {
    int64_t parts[2], first = groups / 16 * 16;
    if (g < first) {
        return g;
    }
    tail_parts(groups % 16, parts);
    const bool second = g >= first + 16;
    const int64_t at = first + (second ? parts[0] + g % parts[1] : g % parts[0]);
    return at < groups ? at : -1;
}

// The first place of a group in a row.
static int64_t place_of(int64_t group, int64_t groups) {
    int64_t g = 0;
    while (group_at(g, groups) != group) {
        g++;
    }
    return g;
}

// Whole blocks. The length may end inside a unit.
static int64_t interleaved_length(enum ggml_type type) {
    const int64_t block = ggml_blck_size(type);
    return block * test_random_int(1, test_random() % 4 == 0 ? 8192 / (int) block : 1024 / (int) block + 1);
}

// Memory that ends with the blocks, for sanitizers. Bytes are random, with finite scales unless any
// are allowed.
static uint8_t * interleaved_blocks(const struct interleaved_format * f, int64_t k, bool tame) {
    const size_t size = ggml_row_size(f->type, k), block = ggml_type_size(f->type);
    uint8_t * blocks = malloc(size);
    float values[256];
    for (size_t at = 0; at < size; at += block) {
        for (bool fine = false; !fine;) {
            for (size_t i = 0; i < block; i++) {
                blocks[at + i] = (uint8_t) test_random();
            }
            gb_quant_format_of(f->type)->to_float(blocks + at, values, ggml_blck_size(f->type));
            fine = true;
            for (int i = 0; i < ggml_blck_size(f->type); i++) {
                fine = fine && (!tame || fabsf(values[i]) < 1e8f);
            }
        }
    }
    return blocks;
}

static float * interleaved_values(int64_t n, enum values v) {
    static float x[INTERLEAVED_TERMS_MAX];
    for (int64_t i = 0; i < n; i++) {
        x[i] = random_value(v);
    }
    return x;
}

static void test_interleave_row(const struct gb_kernels * k) {
    static int8_t q[INTERLEAVED_TERMS_MAX];
    static float d[INTERLEAVED_TERMS_MAX / 32], s[INTERLEAVED_TERMS_MAX / 16];
    for (int pass = 0; pass < 200 && k->interleaved; pass++) {
        const int kind = (pass % 2 ? GB_BYTES_HALVES : 0) | (pass / 2 % 2 ? GB_BYTES_CENTERED : 0),
                  group = pass % 2 ? 16 : 32;
        const int zero = pass / 2 % 2 ? (int) test_random_int(1, 128) : 0;
        const int64_t n = 32 * (int64_t) test_random_int(1, 64);
        const size_t size = row_units_size(n, group);
        char * const y = malloc(size + 1);
        float * x = interleaved_values(n, pass % 5 ? TAME : WILD);
        y[size] = 0x5a;
        k->interleave_row(n, kind, zero, y, x);
        k->quantize_q8(&(struct gb_quantize_q8) { n, kind, zero, 1, q, d, s, x });
        CHECK_MSG(y[size] == 0x5a, "%s interleave_row writes outside", level_name);
        CHECK((size_t) gb_interleaved_row_units(n, group == 16) * (group == 16 ? 384 : 640) == size);
        for (int64_t g = 0; g < (int64_t) (size / (group == 16 ? 384 : 640)) * 16; g++) {
            const int64_t from = group_at(g, n / group);
            for (int64_t i = 0; i < group; i++) {
                CHECK_MSG(((const int8_t *) y)[interleaved_term(g * group + i, group)] ==
                              (from >= 0 ? q[from * group + i] : 0),
                    "%s interleave_row: term %d of group %d of %d terms", level_name, (int) i, (int) g, (int) n);
            }
            float scale = from >= 0 ? d[from * group / 32] : 0, end = from >= 0 ? s[from] : 0,
                  got = interleaved_float(y, g, group, 0);
            CHECK_MSG(same_array(&got, &scale, 1), "%s interleave_row: scale %d", level_name, (int) g);
            got = interleaved_float(y, g, group, 1);
            CHECK_MSG(zero != 0 ? memcmp(&got, &end, sizeof(got)) == 0 : same_array(&got, &end, 1),
                "%s interleave_row: sum %d", level_name, (int) g);
        }
        free(y);
    }
}

// All units in order, as the scalar level unpacks them.
static void test_interleave_column(const struct gb_kernels * k) {
    static uint8_t u[2][GB_UNPACK_MAX];
    static float d[2][GB_UNPACK_MAX / 16], m[2][GB_UNPACK_MAX / 16];
    for (int pass = 0; pass < 12 * INTERLEAVED_FORMATS_N && k->interleaved; pass++) {
        const struct interleaved_format * f = &interleaved_formats()[pass % INTERLEAVED_FORMATS_N];
        const int64_t unit = 16 * f->group, length = (interleaved_length(f->type) + unit - 1) / unit * unit,
                      ld = GB_UNPACK_MAX;
        const size_t size = units_size(length, f->group);
        uint8_t * blocks = interleaved_blocks(f, length, false);
        char * y = malloc(size);
        CHECK(k->interleave_column((int) f->type, length, y, blocks));
        for (int64_t k0 = 0; k0 < length; k0 += ld) {
            f->unpack(length - k0 < ld ? length - k0 : ld, u[k0 / ld % 2], d[k0 / ld % 2], m[k0 / ld % 2],
                blocks + ggml_row_size(f->type, k0));
            for (int64_t i = k0; i < length && i < k0 + ld; i++) {
                CHECK_MSG((uint8_t) y[interleaved_term(i, f->group)] == u[k0 / ld % 2][i - k0],
                    "%s interleave_column %s: level %d", level_name, ggml_type_name(f->type), (int) i);
                const float got_d = interleaved_float(y, i / f->group, f->group, 0),
                            got_m = interleaved_float(y, i / f->group, f->group, 1);
                CHECK_MSG(same_array(&got_d, &d[k0 / ld % 2][(i - k0) / f->group], 1),
                    "%s interleave_column %s: scale of %d", level_name, ggml_type_name(f->type), (int) i);
                CHECK_MSG(f->zero != 0 || same_array(&got_m, &m[k0 / ld % 2][(i - k0) / f->group], 1),
                    "%s interleave_column %s: minimum of %d", level_name, ggml_type_name(f->type), (int) i);
            }
        }
        free(y);
        free(blocks);
    }
}

struct interleaved_case { // columns times rows
    const struct gb_kernels * k;
    const struct interleaved_format * f;
    int64_t length, whole; // terms; terms in full units
    int nw, nx;
    uint8_t * blocks[3];
    char * rows[4];
};

// The sums of nw columns from `first` with all rows: full units, then tails.
static void interleaved_sums_of(const struct interleaved_case * c, int first, int nw, float * sums) {
    float acc[2 * 4 * 16];
    const void *w[2], *tail[4];
    for (int i = 0; i < nw; i++) {
        w[i] = c->blocks[first + i];
    }
    CHECK(c->k->interleaved_dots(&(struct gb_interleaved_dots) { .type = (int) c->f->type,
        .k = c->whole,
        .nw = nw,
        .nx = c->nx,
        .acc = acc,
        .columns = w,
        .rows = (const void * const *) c->rows,
        .next = w }));
    for (int j = 0; j < c->nx; j++) {
        tail[j] = c->rows[j] + units_size(c->whole, c->f->group);
    }
    c->k->interleaved_sums(nw, sums, acc);
    for (int i = 0; i < nw && c->whole < c->length; i++) {
        float * const y[4] = { sums + 4 * i, sums + 4 * i + 1, sums + 4 * i + 2, sums + 4 * i + 3 };
        CHECK(c->k->interleaved_tails(&(struct gb_interleaved_tails) { .type = (int) c->f->type,
            .k = c->length - c->whole,
            .n = 1,
            .nx = c->nx,
            .w = c->blocks[first + i] + ggml_row_size(c->f->type, c->whole),
            .rows = tail,
            .y = y,
            .add = true }));
    }
}

// The dot product of a column and a row in double precision, from the dequantized values.
static double interleaved_expected(const struct interleaved_case * c, int i, int j, double * bound) {
    static float weights[INTERLEAVED_TERMS_MAX];
    const int group = c->f->group;
    double sum = 0, size = 0;
    gb_quant_format_of(c->f->type)->to_float(c->blocks[i], weights, (int) c->length);
    for (int64_t p = 0; p < c->length; p += group) {
        static uint8_t u[GB_UNPACK_MAX];
        static float d[GB_UNPACK_MAX / 16], m[GB_UNPACK_MAX / 16];
        const int64_t block = ggml_blck_size(c->f->type), in = p % block;
        const int64_t place = place_of(p / group, c->length / group);
        const double scale = interleaved_float(c->rows[j], place, group, 0);
        c->f->unpack(block, u, d, m, c->blocks[i] + ggml_row_size(c->f->type, p - in));
        for (int64_t l = 0; l < group; l++) {
            const double q = ((const int8_t *) c->rows[j])[interleaved_term(place * group + l, group)];
            sum += weights[p + l] * q * scale;
            size += fabs(q * scale) * (fabs((u[in + l] + (double) c->f->zero) * d[in / group]) +
                                          (c->f->zero != 0 ? 0 : fabs((double) m[in / group])));
        }
    }
    *bound = 4 * (double) (c->length + 1) * EPS * size;
    return sum;
}

// Dot products against double precision. Tiles of any size and partial sums give the same bits.
static void check_interleaved_products(const struct gb_kernels * k, const struct interleaved_format * f,
    int64_t length) {
    enum { W = 3, X = 4 };
    static float acc[W * X * 16];
    struct interleaved_case c = { k, f, length, length / (16 * f->group) * (16 * f->group), (int) test_random_int(1, W),
        (int) test_random_int(1, X), { NULL }, { NULL } };
    const size_t size = units_size(length, f->group);
    char * columns[W];
    const void * tail[X];
    float y[W][X] = { { 0 } }, sums[W * X];
    for (int j = 0; j < c.nx; j++) {
        c.rows[j] = malloc(row_units_size(length, f->group));
        k->interleave_row(length, interleaved_kind(f), f->zero, c.rows[j], interleaved_values(length, TAME));
        tail[j] = c.rows[j] + size;
    }
    for (int i = 0; i < c.nw; i++) {
        c.blocks[i] = interleaved_blocks(f, length, true);
        columns[i] = malloc(size + 1);
        CHECK(k->interleave_column((int) f->type, c.whole, columns[i], c.blocks[i]));
        interleaved_sums_of(&c, i, 1, y[i]);
        for (int j = 0; j < c.nx; j++) {
            double bound;
            const double sum = interleaved_expected(&c, i, j, &bound);
            CHECK_MSG(fabs(y[i][j] - sum) <= bound, "%s interleaved_dots %s, k %d: %.9g, expected %.9g", level_name,
                ggml_type_name(f->type), (int) length, y[i][j], sum);
        }
    }
    if (c.nw > 1) {
        float two[2 * X];
        interleaved_sums_of(&c, 0, 2, two);
        for (int j = 0; j < c.nx; j++) {
            CHECK_MSG(same_bits(two[j], y[0][j]) && same_bits(two[4 + j], y[1][j]),
                "%s interleaved_dots %s depends on what is taken together", level_name, ggml_type_name(f->type));
        }
    }
    const int64_t units = (int64_t) (size / (f->group == 16 ? 384 : 640)), part = test_random_int(0, (uint32_t) units);
    for (int from = 0; from < 2; from++) { // some units, then the rest
        const void *w_part[W], *x_part[X];
        const size_t at = from ? (size_t) part * (f->group == 16 ? 384 : 640) : 0;
        for (int i = 0; i < c.nw; i++) {
            w_part[i] = columns[i] + at;
        }
        for (int j = 0; j < c.nx; j++) {
            x_part[j] = c.rows[j] + at;
        }
        k->interleaved_tile(&(struct gb_interleaved_tile) {
            .units = from ? units - part : part,
            .kind = interleaved_kind(f),
            .nw = c.nw,
            .nx = c.nx,
            .acc = acc,
            .columns = w_part,
            .rows = x_part,
            .accumulate = from,
        });
    }
    k->interleaved_sums(c.nw, sums, acc);
    for (int i = 0; i < c.nw && c.whole < length; i++) {
        float * const to[X] = { sums + X * i, sums + X * i + 1, sums + X * i + 2, sums + X * i + 3 };
        CHECK(k->interleaved_tails(&(struct gb_interleaved_tails) { .type = (int) f->type,
            .k = length - c.whole,
            .n = 1,
            .nx = c.nx,
            .w = c.blocks[i] + ggml_row_size(f->type, c.whole),
            .rows = tail,
            .y = to,
            .add = true }));
    }
    for (int i = 0; i < c.nw; i++) {
        for (int j = 0; j < c.nx; j++) {
            CHECK_MSG(same_bits(sums[4 * i + j], y[i][j]), "%s interleaved_tile %s, %d x %d: %.9g is not %.9g",
                level_name, ggml_type_name(f->type), c.nw, c.nx, sums[4 * i + j], y[i][j]);
        }
        free(c.blocks[i]);
        free(columns[i]);
    }
    for (int j = 0; j < c.nx; j++) {
        free(c.rows[j]);
    }
}

static void test_interleaved_dots(const struct gb_kernels * k) {
    for (int pass = 0; pass < 10 * INTERLEAVED_FORMATS_N && k->interleaved; pass++) {
        const struct interleaved_format * f = &interleaved_formats()[pass % INTERLEAVED_FORMATS_N];
        check_interleaved_products(k, f, interleaved_length(f->type));
    }
    CHECK(!k->interleaved_dots(&(struct gb_interleaved_dots) {
              .type = (int) GGML_TYPE_F32,
              .k = 32,
              .nw = 0,
              .nx = 0,
              .acc = NULL,
              .columns = NULL,
              .rows = NULL,
              .next = NULL,
              .accumulate = false,
          }) &&
          !k->interleave_column((int) GGML_TYPE_F32, 32, NULL, NULL));
}

// Streams of columns with gaps give the bits of interleaved_dots and interleaved_tails for one column. Nothing else is
// read or written.
static void test_interleaved_row_dots(const struct gb_kernels * k) {
    enum { N = 19, COLUMNS = GB_INTERLEAVED_STREAMS * (N + 2) };
    for (int pass = 0; pass < 4 * INTERLEAVED_FORMATS_N && k->interleaved; pass++) {
        const struct interleaved_format * f = &interleaved_formats()[pass % INTERLEAVED_FORMATS_N];
        const int64_t length = interleaved_length(f->type);
        const int streams = (int) test_random_int(1, GB_INTERLEAVED_STREAMS);
        const int n = (int) test_random_int(1, N), apart = n + (int) test_random_int(0, 2);
        const size_t bytes = ggml_row_size(f->type, length), nb = bytes + (size_t) test_random_int(0, 3) * 32;
        const int last = (streams - 1) * apart + n;
        char *w = malloc((size_t) (last - 1) * nb + bytes), *row = malloc(row_units_size(length, f->group));
        float y[COLUMNS], one[4];
        k->interleave_row(length, interleaved_kind(f), f->zero, row, interleaved_values(length, TAME));
        for (int i = 0; i < last; i++) {
            uint8_t * column = interleaved_blocks(f, length, true);
            memcpy(w + (size_t) i * nb, column, bytes);
            free(column);
        }
        for (int i = 0; i < COLUMNS; i++) {
            y[i] = 7;
        }
        CHECK(k->interleaved_row_dots(&(struct gb_interleaved_row_dots) { .type = (int) f->type,
            .streams = streams,
            .k = length,
            .n = n,
            .apart = apart,
            .w = w,
            .nb_w = nb,
            .ahead = nb,
            .x = row,
            .y = y }));
        for (int i = 0; i < COLUMNS; i++) {
            if (i >= last || i % apart >= n) {
                CHECK_MSG(y[i] == 7, "%s interleaved_row_dots wrote column %d outside its streams", level_name, i);
                continue;
            }
            const struct interleaved_case c = { k, f, length, length / (16 * f->group) * (16 * f->group), 1, 1,
                { (uint8_t *) w + (size_t) i * nb }, { row } };
            interleaved_sums_of(&c, 0, 1, one);
            CHECK_MSG(same_bits(y[i], one[0]), "%s interleaved_row_dots %s, column %d of %d: %.9g is not %.9g",
                level_name, ggml_type_name(f->type), i, last, y[i], one[0]);
        }
        free(w);
        free(row);
    }
    CHECK(!k->interleaved_row_dots(&(struct gb_interleaved_row_dots) { .type = (int) GGML_TYPE_F32, .k = 32 }));
}

// Many columns with gaps give the bits of one column. Nothing else is read.
static void test_interleaved_tails(const struct gb_kernels * k) {
    enum { N = 37, X = 4 };
    for (int pass = 0; pass < 16 * INTERLEAVED_FORMATS_N && k->interleaved; pass++) {
        const struct interleaved_format * f = &interleaved_formats()[pass % INTERLEAVED_FORMATS_N];
        const int block = ggml_blck_size(f->type), blocks = 16 * f->group / block;
        if (blocks < 2) {
            continue; // no tails
        }
        const int64_t length = block * test_random_int(1, (uint32_t) blocks - 1);
        const int n = (int) test_random_int(1, N), nx = (int) test_random_int(1, X);
        const size_t bytes = ggml_row_size(f->type, length), nb = bytes + (size_t) test_random_int(0, 40);
        char *w = malloc((size_t) (n - 1) * nb + bytes), *rows[X];
        float y[X][N + 1], one[X];
        float *const all[X] = { y[0], y[1], y[2], y[3] }, *const single[X] = { one, one + 1, one + 2, one + 3 };
        for (int j = 0; j < nx; j++) {
            rows[j] = malloc(row_units_size(length, f->group));
            k->interleave_row(length, interleaved_kind(f), f->zero, rows[j], interleaved_values(length, TAME));
        }
        for (int i = 0; i < n; i++) {
            uint8_t * column = interleaved_blocks(f, length, true);
            memcpy(w + (size_t) i * nb, column, bytes);
            free(column);
        }
        for (int i = 0; i < X * (N + 1); i++) {
            y[i / (N + 1)][i % (N + 1)] = 7;
        }
        struct gb_interleaved_tails tails = { .type = (int) f->type,
            .k = length,
            .n = n,
            .nx = nx,
            .w = w,
            .nb_w = nb,
            .rows = (const void * const *) rows,
            .y = all,
            .add = pass % 2 };
        CHECK(k->interleaved_tails(&tails));
        for (int i = 0; i <= N; i++) {
            one[0] = one[1] = one[2] = one[3] = 7;
            if (i < n) {
                tails.n = 1;
                tails.w = w + (size_t) i * nb;
                tails.y = single;
                k->interleaved_tails(&tails);
            }
            for (int j = 0; j < X; j++) {
                CHECK_MSG(j < nx && i < n ? same_bits(y[j][i], one[j]) : y[j][i] == 7,
                    "%s interleaved_tails %s, column %d of %d, row %d of %d", level_name, ggml_type_name(f->type), i, n,
                    j, nx);
            }
        }
        free(w);
        for (int j = 0; j < nx; j++) {
            free(rows[j]);
        }
    }
    CHECK(!k->interleaved_tails(&(struct gb_interleaved_tails) { .type = (int) GGML_TYPE_F32, .k = 32 }));
}

static void test_interleaved_tile(const struct gb_kernels * k) { // adds to its part only
    static char zeros[640];
    float acc[12 * 16];
    const void *columns[3] = { zeros, zeros, zeros }, *rows[4] = { zeros, zeros, zeros, zeros };
    for (int nw = 1; nw <= 3 && k->interleaved; nw++) {
        for (int nx = 1; nx <= 4; nx++) {
            for (int i = 0; i < 12 * 16; i++) {
                acc[i] = (float) i;
            }
            k->interleaved_tile(&(struct gb_interleaved_tile) {
                .units = 1,
                .kind = nw % 2 ? GB_BYTES_HALVES : 0,
                .nw = nw,
                .nx = nx,
                .acc = acc,
                .columns = columns,
                .rows = rows,
                .accumulate = true,
            });
            for (int i = 0; i < 12 * 16; i++) {
                CHECK(acc[i] == (float) i);
            }
        }
    }
}

static void test_interleaved_sums(const struct gb_kernels * k) { // exact, because the integers are small
    float acc[12 * 16], y[12];
    for (int nw = 1; nw <= 3 && k->interleaved; nw++) {
        for (int i = 0; i < 12 * 16; i++) {
            acc[i] = (float) test_random_int(-1000, 1000);
        }
        memset(y, 0, sizeof(y));
        k->interleaved_sums(nw, y, acc);
        for (int i = 0; i < 12; i++) {
            float sum = 0;
            for (int l = 0; l < 16 && i / 4 < nw; l++) {
                sum += acc[16 * i + l];
            }
            CHECK(y[i] == sum);
        }
    }
}

// -------------------------------------------------------------------------------------------------- columns times rows

typedef double (*element_value)(const void * column, int64_t i);

// The same numbers as floats and in either 16-bit type, near 1.
static void fill_columns(float * floats, uint16_t * halves, int n) {
    for (int i = 0; i < n; i++) {
        floats[i] = random_value(TAME);
        halves[i] = (uint16_t) (0x3c00 + test_random() % 0x400 + (test_random() % 2 << 15));
    }
}

// start + w . x, and the sum of the magnitudes of its terms.
static double expected_dot(element_value value, const void * w, const float * x, int64_t k, double start,
    double * magnitude) {
    double sum = start;
    *magnitude = fabs(start);
    for (int64_t p = 0; p < k; p++) {
        const double term = value(w, p) * (double) x[p];
        sum += term;
        *magnitude += fabs(term);
    }
    return sum;
}

typedef void (*dots_fn)(int64_t k, int nw, float * y, const void * const * w, const float * x, size_t ahead);

static void check_dots(const char * name, dots_fn fn, int width, size_t element, element_value value) {
    enum { K = 300, LD = K + 3 };
    static float x[LD], floats[4 * LD];
    static uint16_t halves[4 * LD];
    CHECK(width >= 1 && width <= 4);
    for (int pass = 0; pass < 600; pass++) {
        const int nw = (int) test_random_int(1, width), at = (int) test_random_int(0, 3);
        const int64_t k = test_random_int(0, K);
        const float * row = x + at;
        const void * w[4];
        float y[5] = { 77, 77, 77, 77, 77 }, alone[1];
        for (int j = 0; j < LD; j++) {
            x[j] = random_value(TAME);
        }
        fill_columns(floats, halves, 4 * LD);
        for (int i = 0; i < 4; i++) {
            w[i] = element == 4 ? (const void *) (floats + i * LD + at) : (const void *) (halves + i * LD + at);
        }
        fn(k, nw, y, w, row, (size_t) test_random_int(0, 5000));
        for (int i = 0; i < 5; i++) {
            double size = 0;
            const double sum = i < nw ? expected_dot(value, w[i], row, k, 0, &size) : 77;
            CHECK_MSG(i < nw ? fabs(y[i] - sum) <= 4 * (double) k * EPS * size : y[i] == 77,
                "%s %s: column %d of %d, k %d: %g, expected %g", level_name, name, i, nw, (int) k, y[i], sum);
        }
        fn(k, 1, alone, w + nw - 1, row, 0);
        CHECK_MSG(same_bits(alone[0], y[nw - 1]), "%s %s depends on what is taken together", level_name, name);
    }
}

static void test_dots_f32(const struct gb_kernels * k) {
    check_dots("dots_f32", k->dots_f32, k->dots_w, 4, float_bits_value);
}
static void test_dots_f16(const struct gb_kernels * k) {
    check_dots("dots_f16", k->dots_f16, k->dots_w, 2, half_bits_value);
}
static void test_dots_bf16(const struct gb_kernels * k) {
    check_dots("dots_bf16", k->dots_bf16, k->dots_w, 2, bfloat_bits_value);
}

static void check_rows_columns(const char * name, gb_kernel_rows_columns * fn, int width, size_t element,
    element_value value) {
    enum { K = 300, LD = K + 7 };
    static float x[8 * LD], floats[4 * LD];
    static uint16_t halves[4 * LD];
    CHECK(width >= 1 && width <= 8);
    for (int pass = 0; pass < 600; pass++) {
        const int nw = (int) test_random_int(1, 4), nx = (int) test_random_int(1, (uint32_t) width),
                  at = (int) test_random_int(0, 3);
        const int64_t k = test_random_int(0, K), ldy = test_random_int(4, 9);
        const bool accumulate = test_random() % 2;
        const char * w = element == 4 ? (const char *) (floats + at) : (const char *) (halves + at);
        float y[8 * 9 + 4], alone[1] = { 0 };
        for (int i = 0; i < 8 * LD; i++) {
            x[i] = random_value(TAME);
        }
        fill_columns(floats, halves, 4 * LD);
        for (size_t i = 0; i < sizeof(y) / sizeof(y[0]); i++) {
            y[i] = 77;
        }
        const char * const next[4] = { w, (const char *) x, w, NULL }; // a query has no effect
        fn(&(struct gb_rows_columns) {
            k, nw, nx, w, LD * element, x, LD, y, ldy, accumulate, test_random() % 2 ? next : NULL });
        const double start = accumulate ? 77 : 0;
        for (int j = 0; j < 8; j++) {
            for (int i = 0; i < ldy; i++) {
                const bool inside = i < nw && j < nx;
                double size = 0;
                const double sum =
                    inside ? expected_dot(value, w + (size_t) i * LD * element, x + j * LD, k, start, &size) : 77;
                const float got = y[j * ldy + i];
                CHECK_MSG(inside ? fabs(got - sum) <= 4 * (double) (k + 1) * EPS * size : got == 77,
                    "%s %s: %d x %d, k %d: %g, expected %g", level_name, name, nw, nx, (int) k, got, sum);
            }
        }
        fn(&(struct gb_rows_columns) {
            .k = k,
            .nw = 1,
            .nx = 1,
            .w = w + (size_t) (nw - 1) * LD * element,
            .x = x + (nx - 1) * LD,
            .y = alone,
            .ldy = 1,
        });
        CHECK_MSG(accumulate || same_bits(alone[0], y[(nx - 1) * ldy + nw - 1]),
            "%s %s depends on what is taken together", level_name, name);
    }
}

static void test_rows_columns_f32(const struct gb_kernels * k) {
    check_rows_columns("rows_columns_f32", k->rows_columns_f32, k->rows_x, 4, float_bits_value);
}
static void test_rows_columns_f16(const struct gb_kernels * k) {
    check_rows_columns("rows_columns_f16", k->rows_columns_f16, k->rows_x, 2, half_bits_value);
}
static void test_rows_columns_bf16(const struct gb_kernels * k) {
    check_rows_columns("rows_columns_bf16", k->rows_columns_bf16, k->rows_x, 2, bfloat_bits_value);
}

// Random rows times random weights, in double precision. A row with the weight 0 may be NaN.
static void check_weigh(const char * name, gb_kernel_weigh * fn, size_t element, element_value value) {
    enum { K = 150, LD = K + 7, ROWS = 67, RESULTS = 9 }; // more rows than one pass takes
    static float floats[ROWS * LD], w[RESULTS * ROWS], y[RESULTS * (K + 3)], before[RESULTS * (K + 3)];
    static uint16_t halves[ROWS * LD];
    const uint16_t nan_bits = 0x7fc0; // of both 16-bit types
    for (int pass = 0; pass < 600; pass++) {
        const int n = (int) test_random_int(0, pass % 5 == 0 ? ROWS : 7), nx = (int) test_random_int(1, RESULTS);
        const int ldy = K + pass % 3;
        const int64_t width = test_random_int(0, K);
        const int empty = pass % 2 == 0 ? (int) test_random_int(0, GB_MAX(n - 1, 0)) : -1; // a row without weight
        const bool zeros = pass % 4 < 2;
        const char * x = element == 4 ? (const char *) (floats + pass % 7) : (const char *) (halves + pass % 7);
        fill_columns(floats, halves, ROWS * LD);
        for (int i = 0; i < K && empty >= 0; i++) {
            floats[empty * LD + pass % 7 + i] = NAN;
            halves[empty * LD + pass % 7 + i] = nan_bits;
        }
        for (int i = 0; i < RESULTS * ROWS; i++) {
            w[i] = i % ROWS == empty || (zeros && test_random() % 8 == 0) ? 0 : random_value(TAME);
        }
        for (size_t i = 0; i < sizeof(y) / sizeof(y[0]); i++) {
            y[i] = before[i] = random_value(TAME);
        }
        fn(&(struct gb_weigh) { width, n, nx, x, LD * element, w, ROWS, y, ldy });
        for (int at = 0; at < RESULTS * ldy; at++) {
            const int j = at / ldy, i = at % ldy;
            double sum = before[at], size = fabs(sum);
            for (int c = 0; c < n && j < nx && i < width; c++) {
                const double weight = w[j * ROWS + c],
                             term = weight != 0 ? weight * value(x + (size_t) c * LD * element, i) : 0;
                sum += term;
                size += fabs(term);
            }
            CHECK_MSG(j < nx && i < width ? fabs(y[at] - sum) <= 4 * (double) (n + 1) * EPS * size
                                          : y[at] == before[at],
                "%s %s %d x %d of %d: %g, expected %g", level_name, name, n, nx, (int) width, y[at], sum);
        }
    }
}

static void test_weigh_f32(const struct gb_kernels * k) { check_weigh("weigh_f32", k->weigh_f32, 4, float_bits_value); }
static void test_weigh_f16(const struct gb_kernels * k) { check_weigh("weigh_f16", k->weigh_f16, 2, half_bits_value); }
static void test_weigh_bf16(const struct gb_kernels * k) {
    check_weigh("weigh_bf16", k->weigh_bf16, 2, bfloat_bits_value);
}

// Columns of random blocks with gaps, times random bytes. The oracle sums in double precision.
static void test_dots_q8_0(const struct gb_kernels * k) {
    enum { K = 288, COLUMNS = 37, ROWS = 16, APART = K / 32 * 34 + 6 };
    static char w[COLUMNS * APART];
    static int8_t q[ROWS][K];
    static float d[ROWS][K / 32], y[ROWS * (COLUMNS + 1)];
    CHECK(k->q8_0_rows >= 0 && k->q8_0_rows <= ROWS);
    if (k->q8_0_rows == 0) {
        CHECK(!k->dots_q8_0(&(struct gb_dots_q8_0) { .k = 32, .n = 1, .nx = 1, .w = w, .y = y }));
        printf("     %s has no dots_q8_0\n", level_name);
        return;
    }
    for (int pass = 0; pass < 300; pass++) {
        const int n = (int) test_random_int(0, COLUMNS), nx = (int) test_random_int(1, ROWS), ldy = COLUMNS + pass % 2;
        const int64_t depth = 32 * (int64_t) test_random_int(0, K / 32);
        const size_t apart = (size_t) (pass % 3 == 0 ? depth / 32 * 34 : APART);
        const int8_t * rows[ROWS];
        const float * scales[ROWS];
        for (size_t i = 0; i < sizeof(w); i++) {
            w[i] = pass % 4 == 0 ? (char) (test_random() % 2 ? -128 : 127) : (char) test_random();
        }
        for (int i = 0; i < COLUMNS; i++) {
            for (int64_t g = 0; g < depth / 32; g++) {
                // near 1/16
                const uint16_t half = (uint16_t) (0x2c00 + test_random() % 0x400 + (test_random() % 2 << 15));
                memcpy(w + (size_t) i * apart + (size_t) g * 34, &half, sizeof(half));
            }
        }
        for (int j = 0; j < ROWS; j++) {
            for (int i = 0; i < K; i++) {
                q[j][i] = (int8_t) (pass % 4 == 0 ? (test_random() % 2 ? -127 : 127) : test_random_int(-127, 127));
                d[j][i / 32] = random_value(TAME);
            }
            rows[j] = q[j];
            scales[j] = d[j];
        }
        for (size_t i = 0; i < sizeof(y) / sizeof(y[0]); i++) {
            y[i] = 77;
        }
        CHECK(k->dots_q8_0(&(struct gb_dots_q8_0) { depth, n, nx, w, apart, rows, scales, y, ldy }));
        for (int at = 0; at < ROWS * (COLUMNS + 1); at++) {
            const int j = at / ldy, i = at % ldy;
            double sum = 0, size = 0;
            for (int64_t p = 0; p < depth && i < n && j < nx; p++) {
                const char * block = w + (size_t) i * apart + (size_t) (p / 32) * 34;
                const double term =
                    half_bits_value(block, 0) * d[j][p / 32] * (signed char) block[2 + p % 32] * q[j][p];
                sum += term;
                size += fabs(term);
            }
            // kernels may add 128 to each weight and subtract it as integers, which is exact
            CHECK_MSG(i < n && j < nx ? fabs(y[at] - sum) <= 4 * (double) (depth + 1) * EPS * size : y[at] == 77,
                "%s dots_q8_0 %d x %d, k %d: %g, expected %g", level_name, n, nx, (int) depth, y[at], sum);
        }
        for (int i = 0; i < n; i++) {
            float alone = 0;
            k->dots_q8_0(&(struct gb_dots_q8_0) {
                depth, 1, 1, w + (size_t) i * apart, 0, rows + nx - 1, scales + nx - 1, &alone, 0 });
            CHECK_MSG(same_bits(alone, y[(nx - 1) * ldy + i]), "%s dots_q8_0 depends on what is taken together",
                level_name);
        }
    }
}

// Random blocks times random weights, in double precision. Rows with weight 0 may be NaN.
static void test_weigh_q8_0(const struct gb_kernels * k) {
    enum { K = 160, ROWS = 67, RESULTS = 9, APART = K / 32 * 34 + 6 }; // more rows than one pass takes
    static uint8_t x[ROWS * APART];
    static float w[RESULTS * ROWS], y[RESULTS * (K + 3)], before[RESULTS * (K + 3)];
    for (int pass = 0; pass < 300; pass++) {
        const int n = (int) test_random_int(0, ROWS), nx = (int) test_random_int(1, RESULTS), ldy = K + pass % 3;
        const int64_t width = 32 * (int64_t) test_random_int(0, K / 32);
        const int empty = pass % 2 == 0 ? (int) test_random_int(0, ROWS - 1) : -1; // a row with weight 0
        for (size_t i = 0; i < sizeof(x); i++) {
            x[i] = (uint8_t) test_random();
        }
        for (int i = 0; i < RESULTS * ROWS; i++) {
            w[i] = i % ROWS == empty || test_random() % 8 == 0 ? 0 : random_value(TAME);
        }
        for (int c = 0; c < ROWS; c++) {
            for (int g = 0; g < K / 32; g++) {
                const uint16_t half = (uint16_t) (c == empty ? 0x7e00 : 0x2c00 + test_random() % 0x400);
                memcpy(x + (size_t) c * APART + (size_t) g * 34, &half, sizeof(half));
            }
        }
        for (size_t i = 0; i < sizeof(y) / sizeof(y[0]); i++) {
            y[i] = before[i] = random_value(TAME);
        }
        k->weigh_q8_0(&(struct gb_weigh) { width, n, nx, x, APART, w, ROWS, y, ldy });
        for (int at = 0; at < RESULTS * ldy; at++) {
            const int j = at / ldy, i = at % ldy;
            double sum = before[at], size = fabs(sum);
            for (int c = 0; c < n && j < nx && i < width; c++) {
                const uint8_t * block = x + (size_t) c * APART + (size_t) (i / 32) * 34;
                const double weight = w[j * ROWS + c],
                             term = weight != 0 ? weight * half_bits_value(block, 0) * (int8_t) block[2 + i % 32] : 0;
                sum += term;
                size += fabs(term);
            }
            CHECK_MSG(j < nx && i < width ? fabs(y[at] - sum) <= 4 * (double) (n + 1) * EPS * size
                                          : y[at] == before[at],
                "%s weigh_q8_0 %d x %d of %d: %g, expected %g", level_name, n, nx, (int) width, y[at], sum);
        }
    }
}

#endif // GB_TESTS_TEST_KERNELS_FEW_H
