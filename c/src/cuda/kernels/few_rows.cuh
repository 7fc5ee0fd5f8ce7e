// few_rows.cuh - products with 2 to 16 columns (rows of dst) on the tensor cores, for the most common
// formats of weights: Q4_0, Q8_0, Q4_K, Q6_K, IQ4_XS. They need compute capability 8.0.
//
// Each weight is read once for all columns. A warp has 16 rows of weights, the rows of gb_mma_s8,
// and one or two panels (panels.cuh) as columns. A stage is 256 elements deep, one block of the K
// formats. The bytes of its rows are copied unchanged, some stages ahead. A lane turns them into
// its own fragment: four times four quants of a group of 32, in their order in memory, so that
// lanes exchange nothing. The warps of a block have different rows and share panels. If there are
// few rows, warps share rows, and the stages of the depth are distributed among them.
//
// The sums of a group start at 3 * 2^22 as the bits of a float, so the bits of start plus sum are
// still a float. One fused multiply-add subtracts the start and applies the scale of the weights
// exactly. A second one applies the scale of the activations. Sums stay below 2^22: 32 * 128 * 127.
// tools/count_sass.py counts the instructions of this loop.
#ifndef GB_CUDA_KERNELS_FEW_ROWS_CUH
#define GB_CUDA_KERNELS_FEW_ROWS_CUH

#include "cuda/kernels/matvec_quick.cuh"
#include "cuda/kernels/panels.cuh"
#include "cuda/kernels/stream.cuh"

enum { GB_FEW_WARPS = 4, GB_FEW_ROWS = 16, GB_FEW_COLUMNS = 16 };
// Blocks on a multiprocessor. With `rolls`, more than 128 registers are needed.
enum { GB_FEW_BLOCKS = gb_stream::rolls ? 3 : 4 };

struct gb_few {
    gb_weights w;
    const gb_panel * x; // of a slice: by eight columns, then along the depth
    float * dst;
    int64_t m, k;
    int columns; // of a slice
    int stages; // panels along the depth
    int split; // 2^split warps share rows; 0, 1 or 2
    int blocks; // along x; a block does the work of blocks blockIdx.x + i gridDim.x
};

// Constants of all stages that stay in registers, values that depend on the lane, and the lane's
// part of a stage in shared memory.
struct gb_few_place {
    const char * row[2]; // the stage's bytes of rows g = lane / 4 and g + 8
    int word; // 4 t, the offset of the lane's word; t = lane % 4
    int owner[4]; // lanes 4 g to 4 g + 3, which have the scales of row g
    int start[4]; // first value of sums
    uint32_t high, top2, signs; // masks of each byte: four bits, two, one
    gb_table16 table; // of IQ4_XS
    GB_METHOD explicit gb_few_place(int lane) {
        word = lane % 4 * 4;
        high = keep(0xf0f0f0f0u, lane);
        top2 = keep(0xc0c0c0c0u, lane);
        signs = keep(0x80808080u, lane);
        table = gb_iq4_table();
        GB_UNROLL for (int i = 0; i < 4; i++) {
            start[i] = (int) keep(0x4b400000u, lane * (i + 1)); // the bits of 3 * 2^22
            table.w[i] = keep(table.w[i], lane);
            owner[i] = gb_quick_keep(lane / 4 * 4 + i);
        }
    }
    // Returns x. The compiler does not know that, and keeps the value in a register.
    static GB_METHOD uint32_t keep(uint32_t x, int by) { return gb_quick_keep(x ^ (uint32_t) by) ^ (uint32_t) by; }
};

// A format. `begin` decodes the parts that a stage has once. `load` reads the words of `span` groups.
// `fragment` turns them into the fragment of one group, in signed bytes. `scales` gives the scale of
// each row and half of the group. The constants are:
//
//   align   bytes; of rows of weights. 0: there is no kernel
//   bytes   of a row in a stage
//   pitch   bytes from row to row in shared memory, so that the rows of one load hit distinct banks
//   chunk   bytes of a copy
//   halves  scales of a group
//   stages  in shared memory
//   minima  the format needs the sums of the activations
//   unit    common factor of all scales
template <int TYPE> struct gb_few_format {
    static constexpr int align = 0;
};

GB_DEVICE uint32_t gb_few_word(const char * at, int offset) { return *(const uint32_t *) (const void *) (at + offset); }

GB_DEVICE float gb_few_half(const char * at, int offset) {
    return gb_half_bits_to_float(*(const uint16_t *) (const void *) (at + offset));
}

// Reads the word at `at + offset + word`. `at` and `word` are multiples of 4; `offset` is even and a constant.
GB_DEVICE uint32_t gb_few_even_word(const char * at, int offset, int word) {
    return offset % 4 == 0 ? gb_few_word(at + word, offset)
                           : gb_perm(gb_few_word(at + word, offset - 2), gb_few_word(at + word, offset + 2), 0x5432);
}

// Scales of eight groups. A lane decodes those of groups t and t + 4; other lanes get them by
// shuffles.
struct gb_few_scales {
    float mine[2][2]; // by row and group
    template <int BYTES> GB_METHOD void of_blocks(const gb_few_place & p) { // blocks of 32 elements
        GB_UNROLL for (int i = 0; i < 4; i++) {
            mine[i / 2][i % 2] = gb_few_half(p.row[i / 2] + p.word / 4 * BYTES, i % 2 * 4 * BYTES);
        }
    }
    GB_METHOD void scales(const gb_few_place & p, int group, float (&d)[2][1]) const {
        GB_UNROLL for (int r = 0; r < 2; r++) { d[r][0] = gb_shfl(mine[r][group / 4], p.owner[group % 4]); }
    }
};

template <> struct gb_few_format<GGML_TYPE_Q4_0> : gb_few_scales {
    static constexpr bool minima = false;
    static constexpr int bytes = 8 * GB_BYTES(q4_0), pitch = bytes, chunk = 16, align = 16, span = 1, halves = 1,
                         stages = 4;
    static constexpr float unit = 0.0625f; // a nibble is in the high half of its byte, less 8, so it counts 16 times
    uint32_t w[2];
    GB_METHOD void begin(const gb_few_place & p) { of_blocks<GB_BYTES(q4_0)>(p); }
    GB_METHOD void load(const gb_few_place & p, int group) {
        GB_UNROLL for (int r = 0; r < 2; r++) {
            w[r] = gb_few_even_word(p.row[r], group * GB_BYTES(q4_0) + GB_AT(q4_0, qs), p.word);
        }
    }
    GB_METHOD void fragment(const gb_few_place & p, int, uint32_t (&a)[4]) const {
        GB_UNROLL for (int r = 0; r < 2; r++) {
            a[r] = (w[r] << 4 & p.high) ^ p.signs;
            a[2 + r] = (w[r] & p.high) ^ p.signs;
        }
    }
};

template <> struct gb_few_format<GGML_TYPE_Q8_0> : gb_few_scales {
    static constexpr bool minima = false;
    static constexpr int bytes = 8 * GB_BYTES(q8_0), pitch = bytes, chunk = 16, align = 16, span = 1, halves = 1,
                         stages = 3;
    static constexpr float unit = 1;
    uint32_t w[2][2];
    GB_METHOD void begin(const gb_few_place & p) { of_blocks<GB_BYTES(q8_0)>(p); }
    GB_METHOD void load(const gb_few_place & p, int group) {
        GB_UNROLL for (int i = 0; i < 4; i++) {
            w[i / 2][i % 2] =
                gb_few_even_word(p.row[i % 2], group * GB_BYTES(q8_0) + GB_AT(q8_0, qs) + 16 * (i / 2), p.word);
        }
    }
    GB_METHOD void fragment(const gb_few_place &, int, uint32_t (&a)[4]) const {
        GB_UNROLL for (int i = 0; i < 4; i++) { a[i] = w[i / 2][i % 2]; }
    }
};

template <> struct gb_few_format<GGML_TYPE_Q4_K> : gb_few_scales {
    static constexpr bool minima = true;
    static constexpr int bytes = GB_BYTES(q4_k), pitch = bytes, chunk = 16, align = 16, span = 2, halves = 1,
                         stages = 4;
    static constexpr float unit = 1;
    uint32_t w[2][2], minimum[4]; // minimum: the fragment of rows g, g + 8 and groups t, t + 4
    float dmin[2];
    GB_METHOD void begin(const gb_few_place & p) {
        const uint32_t shift = (uint32_t) p.word * 2; // selects byte t of a word
        GB_UNROLL for (int r = 0; r < 2; r++) {
            const uint4 head = *(const uint4 *) (const void *) p.row[r];
            const float2 d = gb_unpack_half2(head.x);
            const uint32_t s = head.y >> shift, m = head.z >> shift, both = head.w >> shift;
            mine[r][0] = d.x * (float) (s & 63);
            mine[r][1] = d.x * (float) ((both & 15) | (s >> 2 & 48));
            minimum[r] = gb_bits((float) (m & 63)); // has few bits, so tf32 is exact
            minimum[2 + r] = gb_bits((float) ((both >> 4 & 15) | (m >> 2 & 48)));
            dmin[r] = d.y;
        }
    }
    GB_METHOD void load(const gb_few_place & p, int group) {
        GB_UNROLL for (int i = 0; i < 4; i++) {
            w[i / 2][i % 2] = gb_few_word(p.row[i % 2] + p.word, GB_AT(q4_k, qs) + 16 * group + 16 * (i / 2));
        }
    }
    GB_METHOD void fragment(const gb_few_place &, int group, uint32_t (&a)[4]) const {
        GB_UNROLL for (int i = 0; i < 4; i++) {
            a[i] = (group % 2 == 0 ? w[i / 2][i % 2] : w[i / 2][i % 2] >> 4) & 0x0f0f0f0fu;
        }
    }
    // Subtracts the products of the minima of 8 groups and the sums of the activations.
    GB_METHOD void take_minima(const uint4 & s, float (&sum)[4]) const {
        const uint32_t first[2] = { s.x, s.y }, second[2] = { s.z, s.w };
        float all[4] = { 0, 0, 0, 0 };
        gb_mma_tf32(all, minimum, first);
        gb_mma_tf32(all, minimum, second);
        GB_UNROLL for (int i = 0; i < 4; i++) { sum[i] -= dmin[i / 2] * all[i]; }
    }
};

template <> struct gb_few_format<GGML_TYPE_IQ4_XS> : gb_few_scales {
    static constexpr bool minima = false;
    static constexpr int bytes = GB_BYTES(iq4_xs), pitch = bytes + 8, chunk = 8, align = 8, span = 1, halves = 1,
                         stages = 4;
    static constexpr float unit = 1;
    uint32_t w[2];
    GB_METHOD void begin(const gb_few_place & p) {
        const uint32_t t = (uint32_t) p.word / 4;
        GB_UNROLL for (int r = 0; r < 2; r++) {
            const uint2 head = *(const uint2 *) (const void *) p.row[r];
            const float d = gb_half_bits_to_float((uint16_t) head.x);
            GB_UNROLL for (uint32_t i = 0; i < 2; i++) {
                const uint32_t low = head.y >> (4 * t + 16 * i) & 15, high = head.x >> (16 + 2 * t + 8 * i) & 3;
                mine[r][i] = d * (float) ((int) (low | high << 4) - 32);
            }
        }
    }
    GB_METHOD void load(const gb_few_place & p, int group) {
        GB_UNROLL for (int r = 0; r < 2; r++) { w[r] = gb_few_word(p.row[r] + p.word, GB_AT(iq4_xs, qs) + 16 * group); }
    }
    // Values are in the order of their nibbles. gb_few_multiply puts the activations into the same order.
    GB_METHOD void fragment(const gb_few_place & p, int, uint32_t (&a)[4]) const {
        const gb_table16 & t = p.table;
        GB_UNROLL for (int r = 0; r < 2; r++) {
            const uint32_t codes = w[r] & 0x77777777u, upper = gb_select(0x44444444u, w[r] >> 1, 0x32103210u);
            GB_UNROLL for (int i = 0; i < 2; i++) {
                const uint32_t c = codes >> 16 * i;
                a[2 * i + r] = gb_perm(gb_perm(t.w[0], t.w[1], c), gb_perm(t.w[2], t.w[3], c), upper >> 16 * i);
            }
        }
    }
};

// A block begins at an even address; its words have the same remainder mod 4. A value is 4 (level - 32).
template <> struct gb_few_format<GGML_TYPE_Q6_K> {
    static constexpr bool minima = false;
    static constexpr int bytes = GB_BYTES(q6_k), pitch = 240, chunk = 16, align = 2, span = 4, halves = 2, stages = 3;
    static constexpr float unit = 0.25f;
    uint32_t low[2][2][2], high[2][2], shift[2]; // low: by row, side, part; high: by row, part
    float mine[2][4]; // scales t, t + 4, ...
    const char * at[2]; // 4-aligned
    GB_METHOD void begin(const gb_few_place & p) {
        GB_UNROLL for (int r = 0; r < 2; r++) {
            const uint32_t odd = (uint32_t) (uintptr_t) p.row[r] & 2;
            at[r] = p.row[r] - odd;
            shift[r] = odd * 8;
            const float d = gb_few_half(p.row[r], GB_AT(q6_k, d));
            GB_UNROLL for (int i = 0; i < 4; i++) {
                const int8_t s = *(const int8_t *) (p.row[r] + GB_AT(q6_k, scales) + p.word / 4 + 4 * i);
                mine[r][i] = d * (float) s;
            }
        }
    }
    GB_METHOD uint32_t word(const gb_few_place & p, int r, int offset) const {
        const char * from = at[r] + p.word;
        return gb_funnel_right(gb_few_word(from, offset), gb_few_word(from, offset + 4), shift[r]);
    }
    GB_METHOD void load(const gb_few_place & p, int group) { // for half of a block
        GB_UNROLL for (int i = 0; i < 4; i++) {
            const int r = i / 2, part = i % 2;
            low[r][0][part] = word(p, r, GB_AT(q6_k, ql) + 16 * group + 16 * part);
            low[r][1][part] = word(p, r, GB_AT(q6_k, ql) + 16 * group + 16 * part + 32);
            high[r][part] = word(p, r, GB_AT(q6_k, qh) + 8 * group + 16 * part);
        }
    }
    GB_METHOD void fragment(const gb_few_place & p, int group, uint32_t (&a)[4]) const {
        GB_UNROLL for (int i = 0; i < 4; i++) {
            const int part = i / 2, r = i % 2, side = group % 2, n = group % 4;
            const uint32_t l = low[r][side][part], h = high[r][part];
            const uint32_t top = ((n == 0 ? h << 6 : n == 1 ? h << 4 : n == 2 ? h << 2 : h) & p.top2) ^ p.signs;
            a[i] = gb_select(0x3c3c3c3cu, n < 2 ? l << 2 : l >> 2, top);
        }
    }
    GB_METHOD void scales(const gb_few_place & p, int group, float (&d)[2][2]) const {
        GB_UNROLL for (int r = 0; r < 2; r++) {
            GB_UNROLL for (int h = 0; h < 2; h++) {
                const int i = 2 * group + h;
                d[r][h] = gb_shfl(mine[r][i / 4], p.owner[i % 4]);
            }
        }
    }
};

// In shared memory: a stage has the rows of all warps, then 2^split times the panels. Sums follow the stages.
template <int TYPE> struct gb_few_stage {
    static constexpr int slot = GB_FEW_ROWS * gb_few_format<TYPE>::pitch, rows = GB_FEW_WARPS * slot,
                         panel = gb_few_format<TYPE>::minima ? (int) sizeof(gb_panel) : (int) offsetof(gb_panel, s);
    static constexpr int sums = gb_stream::rolls ? GB_FEW_WARPS * 32 * 4 * (int) sizeof(float) : 0; // for each panel
};

// The chunks of a warp's rows in a stage, and their distribution to lanes.
template <int TYPE> struct gb_few_chunks {
    typedef gb_few_format<TYPE> format;
    static constexpr bool moves = format::align < 8; // copies from the aligned address before the row
    static constexpr int n = (format::bytes + (moves ? 14 : 0) + format::chunk - 1) / format::chunk; // of a row
    static constexpr int each = (n + 1) / 2; // of a lane
    // Chunk i of a lane: its row, and its number in the row.
    static GB_METHOD int row(int lane, int i) { return gb_stream::early ? (lane + 32 * i) / n : lane / 2; }
    static GB_METHOD int chunk(int lane, int i) { return gb_stream::early ? (lane + 32 * i) % n : 2 * i + lane % 2; }
    static GB_METHOD bool exists(int lane, int i) { return row(lane, i) < GB_FEW_ROWS && chunk(lane, i) < n; }
};

// A thread's position along the depth, and its addresses in a stage.
template <int TYPE> struct gb_few_walk {
    enum { OFFSETS = gb_stream::early ? gb_few_chunks<TYPE>::each : 1 };
    const char * from; // of the next copy: the warp's first row, or a later one after the last
    uint32_t offset[OFFSETS]; // of the lane's chunks, from there
    const char * x; // of the next copy: panels
    int64_t gap; // bytes from the end of one panel to the next
    int left; // bytes to the end of the row
    int ahead, computed; // numbers of the next stage to copy, to compute
    char *there, *here, *end; // their shared memory; end of the last stage
    // Bytes in a row to the warp's next stage; bytes of a stage; offset of the warp's panels in a stage.
    int step, stage, to_panels;
    int first, each; // bytes of panels that the thread copies: offset, distance
    int block, round, rounds; // of the next copy, with `rolls`: the block of work; stages of a warp
    uint32_t begin[2]; // Q6_K: where rows g and g + 8 begin
    float sum[2][4]; // by panel
};

// Queues the copy of a stage of the warp's rows. WHOLE: it is not the last stage.
template <int TYPE, bool WHOLE> GB_DEVICE void gb_few_copy(char * slot, const gb_few_walk<TYPE> & w) {
    typedef gb_few_format<TYPE> format;
    typedef gb_few_chunks<TYPE> chunks;
    constexpr int chunk = format::chunk;
    const int lane = (int) threadIdx.x % 32;
    GB_UNROLL for (int i = 0; i < chunks::each; i++) {
        const int at = chunks::chunk(lane, i) * chunk;
        const char * from = w.from + (gb_stream::early ? w.offset[i] : w.offset[0] + (uint32_t) (i * 2 * chunk));
        const int before = chunks::moves ? (int) ((uintptr_t) from & 15) : 0;
        const int left = gb_min((int) format::bytes, w.left) + before - at;
        const int here = WHOLE ? chunk : gb_min(gb_max(left, 0), chunk);
        if (chunks::exists(lane, i)) {
            from -= before + (here > 0 ? 0 : at);
            char * to = slot + chunks::row(lane, i) * format::pitch + at;
            if constexpr (chunk == 16) {
                gb_cp_async_16(to, from, here);
            } else {
                gb_cp_async_8(to, from, here);
            }
        }
    }
}

// Sets the walk to the first stage of a block of work; past the last one, nothing is copied.
template <int TYPE, int NT>
GB_DEVICE void gb_few_begin(const gb_few & p, gb_few_walk<TYPE> & w, int block, int part, int band) {
    typedef gb_few_format<TYPE> format;
    typedef gb_few_chunks<TYPE> chunks;
    const int lane = (int) threadIdx.x % 32;
    const bool any = block < p.blocks;
    const int64_t row = gb_min(((int64_t) block * (GB_FEW_WARPS >> p.split) + band) * GB_FEW_ROWS, p.m - 1);
    w.from = gb_weights_of_slice(p.w, blockIdx.z) + row * (int64_t) p.w.nb_m + part * format::bytes;
    GB_UNROLL for (int i = 0; i < gb_few_walk<TYPE>::OFFSETS; i++) { // rows past the last one repeat it
        w.offset[i] = (uint32_t) gb_min<int64_t>(chunks::row(lane, i), p.m - 1 - row) * (uint32_t) p.w.nb_m +
                      (uint32_t) (chunks::chunk(lane, i) * format::chunk);
    }
    w.x = (const char *) (p.x + (int64_t) blockIdx.z * NT * p.stages + part);
    w.left = (int) (p.k / gb_format<TYPE>::block * gb_format<TYPE>::bytes) - part * format::bytes;
    w.ahead = any ? part : p.stages;
    w.block = block;
    w.round = 0;
}

// Queues the thread's next copy, if there is one.
template <int TYPE, int NT, bool WHOLE>
GB_DEVICE void gb_few_fetch(const gb_few & p, gb_few_walk<TYPE> & w, char * shared) {
    typedef gb_few_stage<TYPE> layout;
    const int warp = (int) threadIdx.x / 32;
    if (WHOLE || w.ahead < p.stages) {
        gb_few_copy<TYPE, WHOLE>(w.there + warp * layout::slot, w);
        for (int i = w.first; i < NT * layout::panel; i += w.each) {
            gb_cp_async_16(w.there + w.to_panels + i, w.x + i + (NT > 1 && i >= layout::panel ? w.gap : 0));
        }
    }
    gb_cp_async_commit();
    w.ahead += 1 << p.split;
    w.left -= w.step;
    w.from += w.step;
    w.x += (int) sizeof(gb_panel) << p.split;
    w.there += w.stage;
    w.there = w.there == w.end ? shared : w.there;
    if constexpr (gb_stream::rolls) {
        w.round++;
        if (!WHOLE && w.round == w.rounds) {
            gb_few_begin<TYPE, NT>(p, w, w.block + (int) gridDim.x, warp & ((1 << p.split) - 1), warp >> p.split);
        }
    }
}

// Multiplies a group of the weights by the panels.
template <int TYPE, int NT>
GB_DEVICE void gb_few_multiply(const gb_few_format<TYPE> & f, const gb_few_place & place, const char * panels,
    int group, float (&sum)[2][4]) {
    typedef gb_few_format<TYPE> format;
    constexpr int H = format::halves;
    uint32_t a[4];
    float d[2][H], less[2][H];
    f.fragment(place, group, a);
    f.scales(place, group, d);
    GB_UNROLL for (int r = 0; r < 2; r++) {
        GB_UNROLL for (int h = 0; h < H; h++) { less[r][h] = -12582912.0f * d[r][h]; }
    }
    GB_UNROLL for (int c = 0; c < NT; c++) {
        const gb_panel & panel = *(const gb_panel *) (const void *) (panels + c * gb_few_stage<TYPE>::panel);
        const int lane = (int) threadIdx.x % 32, at = group % 2 * 2;
        const uint4 q = *(const uint4 *) (const void *) panel.q[group / 2][lane];
        const float4 x = *(const float4 *) (const void *) panel.d[group / 2][lane % 4];
        uint32_t b[2] = { at == 0 ? q.x : q.z, at == 0 ? q.y : q.w };
        const float scale[2] = { at == 0 ? x.x : x.z, at == 0 ? x.y : x.w };
        if constexpr (TYPE == GGML_TYPE_IQ4_XS) { // in the order of nibbles
            const uint32_t first = gb_perm(b[0], b[1], 0x5140), second = gb_perm(b[0], b[1], 0x7362);
            b[0] = first, b[1] = second;
        }
        if constexpr (H == 1) {
            int dot[4];
            gb_mma_s8(dot, a, b, place.start);
            GB_UNROLL for (int i = 0; i < 4; i++) {
                const float scaled = fmaf(gb_bits_to_float((uint32_t) dot[i]), d[i / 2][0], less[i / 2][0]);
                sum[c][i] = fmaf(scale[i % 2], scaled, sum[c][i]);
            }
        } else {
            const uint32_t a0[2] = { a[0], a[1] }, a1[2] = { a[2], a[3] };
            int dot[2][4];
            gb_mma_s8_half(dot[0], a0, b[0], place.start);
            gb_mma_s8_half(dot[1], a1, b[1], place.start);
            GB_UNROLL for (int i = 0; i < 4; i++) {
                const float scaled = fmaf(gb_bits_to_float((uint32_t) dot[0][i]), d[i / 2][0], less[i / 2][0]) +
                                     fmaf(gb_bits_to_float((uint32_t) dot[1][i]), d[i / 2][1], less[i / 2][1]);
                sum[c][i] = fmaf(scale[i % 2], scaled, sum[c][i]);
            }
        }
    }
}

template <int TYPE, int NT>
GB_DEVICE void gb_few_compute(const gb_few_place & place, const char * panels, float (&sum)[2][4]) {
    typedef gb_few_format<TYPE> format;
    format f;
    f.begin(place);
    GB_UNROLL for (int group = 0; group < 8; group++) {
        if (group % format::span == 0) {
            f.load(place, group);
        }
        gb_few_multiply<TYPE, NT>(f, place, panels, group, sum);
    }
    if constexpr (format::minima) {
        GB_UNROLL for (int c = 0; c < NT; c++) {
            const gb_panel & panel = *(const gb_panel *) (const void *) (panels + c * gb_few_stage<TYPE>::panel);
            f.take_minima(*(const uint4 *) (const void *) panel.s[threadIdx.x % 32], sum[c]);
        }
    }
}

// The first of the warps that share rows adds up the sums of all. Every thread of the block calls
// this.
template <int NT> GB_DEVICE void gb_few_join(char * shared, int split, float (&sum)[2][4]) {
    float * const part = (float *) (void *) shared;
    const int lane = (int) threadIdx.x % 32, warp = (int) threadIdx.x / 32;
    gb_sync_block();
    GB_UNROLL for (int i = 0; i < 4 * NT; i++) { part[(warp * 4 * NT + i) * 32 + lane] = sum[i / 4][i % 4]; }
    gb_sync_block();
    for (int w = 1; warp % split == 0 && w < split; w++) {
        GB_UNROLL for (int i = 0; i < 4 * NT; i++) { sum[i / 4][i % 4] += part[((warp + w) * 4 * NT + i) * 32 + lane]; }
    }
}

// Waits for a stage, starts the copy of another, and computes.
template <int TYPE, int NT, bool WHOLE>
GB_DEVICE void gb_few_turn(const gb_few & p, gb_few_walk<TYPE> & w, gb_few_place & place, char * shared) {
    typedef gb_few_format<TYPE> format;
    const int lane = (int) threadIdx.x % 32, warp = (int) threadIdx.x / 32;
    gb_cp_async_wait<format::stages - 2>();
    gb_sync_block(); // all copies have arrived, and no thread reads the stage that is overwritten next
    gb_few_fetch<TYPE, NT, WHOLE>(p, w, shared);
    GB_UNROLL for (int r = 0; r < 2; r++) {
        place.row[r] = w.here + warp * gb_few_stage<TYPE>::slot + (lane / 4 + 8 * r) * format::pitch;
        place.row[r] += format::align < 8 ? w.begin[r] & 15 : 0;
        w.begin[r] += (uint32_t) w.step;
    }
    if (WHOLE || w.computed < p.stages) {
        gb_few_compute<TYPE, NT>(place, w.here + w.to_panels, w.sum);
    }
    w.computed += 1 << p.split;
    w.here += w.stage;
    w.here = w.here == w.end ? shared : w.here;
}

// Prefetches the weights of the first stages, two lanes for a row. Called before gb_wait_for_earlier.
template <int TYPE> GB_DEVICE void gb_few_prefetch(const gb_few & p) {
    enum { LINE = 128 };
    typedef gb_few_format<TYPE> format;
    const int lane = (int) threadIdx.x % 32, warp = (int) threadIdx.x / 32, part = warp & ((1 << p.split) - 1);
    const int64_t row = ((int64_t) blockIdx.x * (GB_FEW_WARPS >> p.split) + (warp >> p.split)) * GB_FEW_ROWS + lane / 2;
    const char * a = gb_weights_of_slice(p.w, blockIdx.z) + row * (int64_t) p.w.nb_m;
    const int64_t end = p.k / gb_format<TYPE>::block * gb_format<TYPE>::bytes;
    for (int s = 0; s < format::stages - 1 && row < p.m; s++) {
        const int64_t begin = (part + (s << p.split)) * (int64_t) format::bytes;
        for (int64_t i = begin + lane % 2 * LINE; i < gb_min(end, begin + format::bytes); i += 2 * LINE) {
            gb_prefetch(a + i);
        }
    }
}

// NT: panels across the columns. grid: x rows of weights, z slices.
template <int TYPE, int NT> GB_KERNEL GB_BOUNDS(GB_FEW_WARPS * 32, GB_FEW_BLOCKS) gb_few_rows(gb_few p) {
    gb_few_prefetch<TYPE>(p);
    gb_wait_for_earlier();
    typedef gb_few_format<TYPE> format;
    typedef gb_few_stage<TYPE> layout;
    gb_needs_code(80);
    GB_DYNAMIC_SHARED(char, shared);
    const int lane = (int) threadIdx.x % 32, warp = (int) threadIdx.x / 32, g = lane / 4, t = lane % 4;
    const int part = warp & ((1 << p.split) - 1), band = warp >> p.split, bands = GB_FEW_WARPS >> p.split;
    gb_few_place place(lane);
    gb_few_walk<TYPE> w = {};
    w.gap = (int64_t) p.stages * (int64_t) sizeof(gb_panel) - layout::panel;
    w.step = format::bytes << p.split;
    w.stage = layout::rows + (NT * layout::panel << p.split);
    w.to_panels = layout::rows + part * NT * layout::panel;
    w.first = (band * 32 + lane) * 16;
    w.each = bands * 512;
    w.there = w.here = shared;
    w.end = shared + format::stages * w.stage;
    w.rounds = (p.stages + (1 << p.split) - 1) >> p.split;
    gb_few_begin<TYPE, NT>(p, w, (int) blockIdx.x, part, band);
    for (int s = 0; s < format::stages - 1; s++) {
        gb_few_fetch<TYPE, NT, false>(p, w, shared);
    }
    const int whole = ((p.stages - 1) >> p.split) - (format::stages - 1);
    for (int block = (int) blockIdx.x; block < p.blocks; block += (int) gridDim.x) {
        const int64_t row = ((int64_t) block * bands + band) * GB_FEW_ROWS;
        GB_UNROLL for (int r = 0; r < 2; r++) {
            const char * a = gb_weights_of_slice(p.w, blockIdx.z) + part * format::bytes;
            w.begin[r] = (uint32_t) (uintptr_t) (a + gb_min<int64_t>(row + g + 8 * r, p.m - 1) * (int64_t) p.w.nb_m);
        }
        w.computed = part;
        int round = 0;
        for (; round < whole; round++) { // no warp copies the last stage here
            gb_few_turn<TYPE, NT, true>(p, w, place, shared);
        }
        for (; round < w.rounds; round++) {
            gb_few_turn<TYPE, NT, false>(p, w, place, shared);
        }
        if (!gb_stream::rolls) {
            gb_cp_async_wait<0>();
        }
        if (p.split > 0) {
            gb_few_join<NT>(gb_stream::rolls ? w.end : shared, 1 << p.split, w.sum);
        }
        GB_UNROLL for (int i = 0; i < 4 * NT; i++) {
            const int column = i / 4 * GB_PANEL_ROWS + 2 * t + i % 2;
            const int64_t r = row + g + i % 4 / 2 * 8;
            if (part == 0 && r < p.m && column < p.columns) {
                p.dst[((int64_t) blockIdx.z * p.columns + column) * p.m + r] = w.sum[i / 4][i % 4] * format::unit;
            }
            w.sum[i / 4][i % 4] = 0;
        }
        if (!gb_stream::rolls) {
            break;
        }
    }
    gb_cp_async_wait<0>();
}

// Makes panels. grid: x rows of panels over all slices; y eight panels along the depth, or the
// maximum of a grid.
GB_KERNEL GB_BOUNDS(256, 1) gb_rows_of_panels(gb_make_panels p) {
    gb_wait_for_earlier();
    const uint32_t rows = (uint32_t) p.bands * GB_PANEL_ROWS, slice = blockIdx.x / rows, r = blockIdx.x % rows;
    for (int s = (int) (blockIdx.y * 8 + threadIdx.x / 32); s < p.stages; s += (int) gridDim.y * 8) {
        gb_make_panel_row(p, slice, r, s);
    }
}

#endif // GB_CUDA_KERNELS_FEW_ROWS_CUH
