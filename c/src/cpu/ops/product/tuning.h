// tuning.h - the tuning constants of the algorithms for products. Results are correct with all
// values that the static asserts beside the arrays allow. Values marked "Bits" decide the order of
// sums, so another value changes bits of results.
//
// Each comment says which costs the number balances, and which measurement shows it.
// `bench_products WHAT TYPE LEVEL THREADS` is benchmarks/bench_products.c. Set GB_BENCH_CPU=1 on a
// shared machine. M=.., K=.., ROWS=.. and EXACT=1 stand for its variables GB_BENCH_M, GB_BENCH_K,
// GB_BENCH_ROWS and GB_BENCH_EXACT. To choose a value again, change it, build, and compare the
// figures of both builds in alternating runs. The values were chosen on processors with 32 to 48
// KiB of first-level cache and 1 to 2 MiB of second-level cache.
#ifndef GB_CPU_OPS_PRODUCT_TUNING_H
#define GB_CPU_OPS_PRODUCT_TUNING_H

// ------------------------------------------------------------------------------------------------------------- threads

// Multiply-adds that justify one more awake thread. For fewer, the barrier takes longer than the
// thread saves. The gain of waking threads is measured (cpu/plan.h).
//     bench_products shape q4_0 best 2, and 1, M=256 K=512 ROWS=1; f32, M=64 K=64 ROWS=32 and M=16 K=16 ROWS=256
#define GB_GRAIN (1 << 15)

// Few rows: threads take columns dynamically (gb_cpu_take) if the part of a thread has at least
// this many terms, some ten microseconds of work. The second number is the minimum number of
// columns in a piece: whole blocks of all algorithms.
//     bench_products shape q4_0 best 2, M=4096 K=4096 ROWS=1, with and without a program that uses one of the cores
#define GB_TAKE_TERMS (1 << 20)
#define GB_TAKE_COLUMNS 96

// Few rows: each thread prepares all rows for itself if they have at most this many terms. A barrier would take longer.
//     bench_products shape q4_1 best 2, M=576 ROWS=1, K=576 and K=4096
#define GB_PREPARE_TERMS 8192

// ------------------------------------------------------------------------------------------------ short_q8_0 (short.c)

// Maximum rows at all levels: the limit of the kernel. The level says for how many rows it is fast (q8_0_rows). For
// more rows, unpacking a column once for all of them pays.
#define GB_SHORT_ROWS 16
// Maximum terms: longer columns fill the lanes of other kernels. Bits.
//     bench_products shape q8_0 best 1, M=4096 ROWS=4, K=256 and K=288: the second is interleaved
#define GB_SHORT_TERMS 256

// ----------------------------------------------------------------------------------------- interleaved (interleaved.c)

// Maximum rows: for more rows, packing weights into panels pays. Bits.
//     bench_products shape q4_0 best 1, M=4096 K=4096, ROWS=16 and ROWS=17: the second is blocked_bytes
#define GB_INTERLEAVED_ROWS 16
// Prefetch distance in bytes of weights, approximately. With less, loads wait for memory. With
// more, the second-level cache may evict the data before its use. The second number is for one row,
// which reads several streams of columns at the same time, each this far ahead.
//     bench_products shape q8_0 best 2, M=16000 K=4096, ROWS=2 and ROWS=1
#define GB_INTERLEAVED_AHEAD 8192
#define GB_ROW_AHEAD 2048
// One row: columns of a stream between two calls of gb_cpu_stopped. Sixteen tails fill whole units.
#define GB_ROW_COLUMNS 16

// Up to this many rows, columns are unpacked in registers for every four rows, instead of once into memory. The first
// number is for formats that are quick to unpack, the second for all others.
//     bench_products shape q4_0 (quick), iq3_s (others) best 1, M=4096 K=4096, ROWS=4, 5, 8, 9
#define GB_DIRECT_ROWS_QUICK 8
#define GB_DIRECT_ROWS 4
// Columns of a block that are multiplied with the same stretch of the rows. More columns reuse the stretch more often.
// Fewer columns need less memory for their sums.
//     bench_products shape q4_0 best 1, M=4096 K=14336 ROWS=4
#define GB_DIRECT_COLUMNS 32
// Terms of all rows that a block of columns is multiplied with at a time. With their scales they
// take 40 KiB, or 48 KiB if groups have 16 terms: about a first-level cache. With fewer terms,
// columns are read in shorter pieces, which is slower. Each lane has its own sum, so bits do not
// depend on this number.
//     bench_products shape q4_0 best 2, K=14336 M=13312, ROWS=1, 2, 4 and 8
#define GB_DIRECT_TERMS 32768

// Columns that are unpacked at a time, a multiple of the kernel's 3, and terms of each, whole
// vectors. With their sums they take 30 KiB and stay in the first-level cache. Fewer columns would
// use the rows less often.
//     bench_products shape iq3_s best 1, M=4096 K=4096 ROWS=16
#define GB_UNPACKED_COLUMNS 12
#define GB_UNPACKED_TERMS 1024
// Prefetch distance in stretches.
//     bench_products small iq3_s best 1, its line n 16
#define GB_UNPACKED_AHEAD 2

// -------------------------------------------------------------------------------------------- two_bytes (two_bytes.c)

// Maximum results: each takes a float of scratch memory.
#define GB_TWO_BYTES_RESULTS (1 << 24)

// -------------------------------------------------------------------------------------------- byte_dots, dots (dots.c)

// Maximum rows that are multiplied with a column while it is unpacked into bytes. For more rows, a panel of columns
// pays. Bits.
//     bench_products shape q4_0 avx2 1, M=4096 K=4096, ROWS=3 and ROWS=4
#define GB_BYTE_DOTS_ROWS 3
// Maximum rows for which packing w does not pay, because each row uses an element of w once, and
// packing uses it once more. Bits.
//     bench_products shape q4_0 best 1, EXACT=1 M=4096 K=4096, ROWS=2 and ROWS=3: the second is blocked_f32
#define GB_DOTS_ROWS 2
// Terms of a quantized column that are dequantized at a time, to the stack: they stay in the first-level cache. Bits.
//     bench_products shape q4_0 best 1, EXACT=1 M=4096 K=4096 ROWS=1
#define GB_DOTS_TERMS 1024
// Weights between two calls of gb_cpu_stopped. Not measured. For up to four rows they count as
// somewhat less than GB_CPU_PACE, so that a thread checks for the end of the run after every second
// piece.
#define GB_DOTS_PIECE (1 << 18)

// ------------------------------------------------------------------------------------- dense_row, dense_rows (dense.c)

// Prefetch distance of one row in bytes of weights. One row reads several streams of columns at the
// same time, each this far ahead.
//     bench_products shape f32 best 1, ROWS=1, M=8192 K=512, M=512 K=65536
#define GB_DENSE_AHEAD 2048
// Maximum rows: for more rows, packing w pays. Each sum ends with adding lanes, which is expensive
// for short sums, so their maximum is lower. Levels with few registers have tiles of two rows,
// which read each weight three times as often, so their maximum is lower, too. Bits.
//     bench_products shape f32 best 1, M=4096, K=4096 ROWS=40 and 41; M=512, K=64 ROWS=8 and 9
//     bench_products shape f32 avx2 1, M=4096, K=4096 ROWS=20 and 21; M=512, K=64 ROWS=4 and 5
#define GB_DENSE_ROWS 40 // at levels with large tiles
#define GB_DENSE_ROWS_NARROW 20 // at any level
#define GB_DENSE_LONG 128 // sums of fewer terms are short:
#define GB_DENSE_SHORT 5 // divisor of the maximum for short sums
// Floats of the rows that stay in the first-level cache while columns are read. They decide the
// stretch of terms. There is a minimum, because each stretch ends with the sum of the lanes. There
// is a maximum, because one row would fill the cache. Changes bits of results.
//     bench_products shape f32 best 1, M=4096 K=4096, ROWS=4, 16, 40
#define GB_DENSE_FLOATS 8192
#define GB_DENSE_TERMS 512
#define GB_DENSE_TERMS_MAX 2048
// Weights of a block of columns, which stay in the second-level cache for all sets of rows.
//     bench_products shape f32 best 1, M=4096 K=4096 ROWS=40
#define GB_DENSE_WEIGHTS 24576

// --------------------------------------------------------------------------------------------------- lanes (lanes.c)

// Maximum rows, and maximum weights of a matrix, which then stay in the second-level cache. Other algorithms prefetch
// larger ones. Bits.
//     compare_builds.py BEFORE AFTER, and compare_peers.py small --cpu
#define GB_LANES_ROWS 128
#define GB_LANES_WEIGHTS (1 << 19)
// Up to this many rows, sums must have at most this many terms: dense_rows is faster for longer ones. Bits.
//     bench_products shape f32 best 1, M=512 ROWS=16, K=64, 128 and 256
#define GB_LANES_FEW 16
#define GB_LANES_SHORT 128
// Terms of a stretch. A panel of rows of one stretch stays in the first-level cache for several tiles.
//     bench_products shape f32 best 1, M=512 K=512 ROWS=64
#define GB_LANES_TERMS 256

// -------------------------------------------------------------------------------------- blocked (blocked.c, packing.c)

// Terms of a stretch. A panel of rows of one stretch stays in the first-level cache. Longer stretches store sums less
// often. A stretch of bytes has whole blocks of all formats. Bits.
//     bench_products batched f32 best 1; bench_products batched q4_0 best 1
#define GB_BLOCKED_TERMS 512
#define GB_BLOCKED_TERMS_BYTES 512
#define GB_BLOCKED_TERMS_PAIRS 512 // of bfloat16, at levels whose tiles are that fast; else twice GB_BLOCKED_TERMS
// Maximum columns of a chunk, a multiple of the tile of every level. A packed stretch of them stays in the second-level
// cache. Wider chunks read the panels of rows less often.
//     bench_products batched f32 best 1
#define GB_BLOCKED_COLUMNS 128
#define GB_BLOCKED_COLUMNS_BYTES 128
#define GB_BLOCKED_COLUMNS_PAIRS 256 // of bfloat16, at levels whose tiles are that fast
// Approximate rows of a block. A chunk is packed once for each block. Smaller blocks pack more often. Larger blocks
// leave threads without work at the end.
//     bench_products shape f32 best 2, M=4096 K=4096 ROWS=2048
#define GB_BLOCKED_ROWS 1104
#define GB_BLOCKED_ROWS_BYTES 768
// Panels of pairs of bfloat16 (blocked_bf16) are used from this many rows on: fewer rows than for
// panels of floats, because one instruction multiplies more. The instruction must also be this many
// times as fast as multiply-adds of f32 (trait bf16_dots). Changes bits of results.
//     bench_products shape bf16 best 1, M=4096 K=4096, ROWS=16 and ROWS=17
//     bench_products shape bf16 best 1, M=4096 K=4096 ROWS=512, GGML_CPU_TRAITS=bf16_dots=2 and bf16_dots=0.5
#define GB_PAIRS_ROWS 17
#define GB_PAIRS_DOTS 1.0
// Minimum rows and terms for converting quantized weights to pairs (unpacked_bf16), if the processor multiplies pairs
// faster than bytes. Packing pairs takes longer than packing bytes, and a tile has 32 rows. Bits.
//     bench_products shape q8_0 amx 1, M=4096 K=4096, ROWS=32, 64 and 128; M=4096 ROWS=256, K=64 and 128; each with
//     GGML_CPU_TRAITS=bf16_dots=16 and bf16_dots=0.5
#define GB_QUANTIZED_PAIRS_ROWS 64
#define GB_QUANTIZED_PAIRS_TERMS 128
// Up to this many multiply-adds, a product is divided among the threads once, and each thread packs its own operands.
// Longer products gain from shared packing and from a common counter of jobs. The second number is the cost of packing
// a float in multiply-adds. It decides whether rows or columns are divided.
//     bench_products shape f32 best 2, M=128 K=128 ROWS=128 and 512, M=512 K=512 ROWS=96, M=64 K=64 ROWS=512
#define GB_APART_TERMS (1 << 24)
#define GB_APART_PACKING 13
// Maximum columns for which rows of f32 are read in place. With so few columns, packing rows saves little more than it
// costs.
//     bench_products shape f32 best 1, M=64, 512 and 1024 ROWS=512, K=64, 200 and 1000
#define GB_IN_PLACE_COLUMNS 512
// Scratch memory for the packed rows of a round: GB_ROUND_BYTES for each thread, but at least GB_ROUND_ROWS rows if
// these fit into GB_ROUND_BYTES_MAX. Each round packs w again, which pays for that many rows.
//     bench_products shape f32 best 1, M=1024 K=4096, ROWS=768 and ROWS=1536
#define GB_ROUND_BYTES (1 << 20)
#define GB_ROUND_ROWS 768
#define GB_ROUND_BYTES_MAX (64 << 20)

#endif // GB_CPU_OPS_PRODUCT_TUNING_H
