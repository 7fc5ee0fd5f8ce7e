// tile_amx.tpl.h - gemm.tpl.h's tile of pairs of bfloat16 in the tile registers of AMX.
//
// A tile register holds 16 rows of 64 bytes. An operand a has 16 rows of 16 pairs. An operand b has
// 16 rows, each with one pair of each of 16 columns. A product adds to a register of 16 by 16 sums:
// 16 x 16 x 32 multiply-adds in 16 cycles. The kernel keeps two by two registers of sums, so each
// loaded operand serves two products. Subnormal numbers count as 0. The processor decides the order
// of the sums, the same for all places of a tile.

#define BF16_MR 32
#define BF16_NR 32
#define BF16_STEP 16 // pairs of a row in a register

// Configures all eight registers with 16 rows of 64 bytes.
static void enter_tiles(void) {
    static const struct {
        uint8_t palette, start_row, reserved[14];
        uint16_t row_bytes[16];
        uint8_t rows[16];
    } layout = { 1, 0, { 0 }, { 64, 64, 64, 64, 64, 64, 64, 64 }, { 16, 16, 16, 16, 16, 16, 16, 16 } };
    _tile_loadconfig(&layout);
}

// Empties the registers, so that the system need not save them when it switches threads.
static void leave_tiles(void) { _tile_release(); }

// Computes rows 0 .. 15 of the tile, or with `all` rows 0 .. 31: c += a b over `steps` registers of
// a row.
static ALWAYS_INLINE void add_products_(bool all, int64_t steps, const float * a, const float * b, float * c,
    int64_t ldc, bool accumulate, const char * ahead, int lines) {
    const size_t stride = (size_t) ldc * sizeof(float), pairs = BF16_NR * sizeof(float);
    if (accumulate) {
        _tile_loadd(0, c, stride);
        _tile_loadd(1, c + 16, stride);
    } else {
        _tile_zero(0);
        _tile_zero(1);
    }
    if (all && accumulate) {
        _tile_loadd(2, c + 16 * ldc, stride);
        _tile_loadd(3, c + 16 * ldc + 16, stride);
    } else if (all) {
        _tile_zero(2);
        _tile_zero(3);
    }
    for (int64_t s = 0; s < steps; s++) {
        _tile_loadd(4, a, 64);
        _tile_loadd(6, b, pairs);
        _tile_dpbf16ps(0, 4, 6);
        _tile_loadd(7, b + 16, pairs);
        _tile_dpbf16ps(1, 4, 7);
        if (all) {
            _tile_loadd(5, a + 16 * BF16_STEP, 64);
            _tile_dpbf16ps(2, 5, 6);
            _tile_dpbf16ps(3, 5, 7);
        }
        for (int i = 0; i < lines; i++, ahead += 64) {
            PREFETCH_L2(ahead);
        }
        a += BF16_MR * BF16_STEP;
        b += BF16_NR * BF16_STEP;
    }
    _tile_stored(0, c, stride);
    _tile_stored(1, c + 16, stride);
    if (all) {
        _tile_stored(2, c + 16 * ldc, stride);
        _tile_stored(3, c + 16 * ldc + 16, stride);
    }
}

// Computes a part of a tile as a whole one in separate memory, in the same order.
static void part_of_tile_(const struct gb_tile * t) {
    float whole[BF16_MR * BF16_NR] = { 0 };
    for (int i = 0; i < t->mr && t->accumulate; i++) {
        memcpy(whole + i * BF16_NR, t->c + i * t->ldc, (size_t) t->nr * sizeof(float));
    }
    if (t->mr > 16) {
        add_products_(true, t->k / BF16_STEP, t->a, t->b, whole, BF16_NR, t->accumulate, NULL, 0);
    } else {
        add_products_(false, t->k / BF16_STEP, t->a, t->b, whole, BF16_NR, t->accumulate, NULL, 0);
    }
    for (int i = 0; i < t->mr; i++) {
        memcpy(t->c + i * t->ldc, whole + i * BF16_NR, (size_t) t->nr * sizeof(float));
    }
}

static void gemm_tile_bf16(const struct gb_tile * t) {
    if (t->mr < BF16_MR || t->nr < BF16_NR) {
        part_of_tile_(t);
        return;
    }
    add_products_(true, t->k / BF16_STEP, t->a, t->b, t->c, t->ldc, t->accumulate, t->ahead, t->ahead_lines);
}

// limits.tpl.h: the peak rate of the products of a tile.
static int64_t limit_bf16(int64_t steps) {
    enter_tiles();
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    _tile_zero(4);
    _tile_zero(5);
    _tile_zero(6);
    _tile_zero(7);
    for (int64_t s = 0; s < steps; s++) {
        _tile_dpbf16ps(0, 4, 6);
        _tile_dpbf16ps(1, 4, 7);
        _tile_dpbf16ps(2, 5, 6);
        _tile_dpbf16ps(3, 5, 7);
    }
    leave_tiles();
    return 4 * 2 * 16 * 16 * 32 * steps;
}
