// tuning.h - the numbers by which algorithms of products trade one cost for another. Within what the static asserts
// beside their arrays allow, none of them is needed for a result to be right; some decide in which order a sum is made
// (marked "bits"), so another value gives other bits.
//
// Each says what it trades, and which measurement shows it. `bench_products WHAT TYPE LEVEL THREADS` is
// benchmarks/bench_products.c, with GB_BENCH_CPU=1 on a machine that others use; M=.., K=.., ROWS=.. and EXACT=1 stand
// for its variables GB_BENCH_M, GB_BENCH_K, GB_BENCH_ROWS and GB_BENCH_EXACT. To choose anew: change the number, build,
// compare the figures of both in turns. The values were chosen on processors with 32 to 48 KiB of first-level cache and
// 1 to 2 MiB of second-level cache.
#ifndef GB_CPU_OPS_PRODUCT_TUNING_H
#define GB_CPU_OPS_PRODUCT_TUNING_H

// ------------------------------------------------------------------------------------------------------------- threads

// Multiply-adds that justify one more awake thread. Below, the barrier takes longer than the thread saves. The gain of
// waking threads is measured (cpu/plan.h).
//     bench_products shape q4_0 best 2, and 1, M=256 K=512 ROWS=1; f32, M=64 K=64 ROWS=32 and M=16 K=16 ROWS=256
#define GB_GRAIN (1 << 15)

// Few rows: threads take columns dynamically (gb_cpu_take) if the part of a thread has at least
// this many terms, some ten microseconds of work. The second number is the least number of columns
// in a piece: whole blocks of all algorithms.
//     bench_products shape q4_0 best 2, M=4096 K=4096 ROWS=1, with and without a program that uses one of the cores
#define GB_TAKE_TERMS (1 << 20)
#define GB_TAKE_COLUMNS 96

// ------------------------------------------------------------------------------------------------ short_q8_0 (short.c)

// Rows at most, of any level: as many as the kernel may be given, which is no choice. For how many of them it is fast,
// the level says (q8_0_rows): more are worth unpacking a column once for all of them.
#define GB_SHORT_ROWS 16
// Terms at most: longer columns fill the lanes of other kernels. Bits.
//     bench_products shape q8_0 best 1, M=4096 ROWS=4, K=256 and K=288: the second is interleaved
#define GB_SHORT_TERMS 256

// ----------------------------------------------------------------------------------------- interleaved (interleaved.c)

// Rows at most: more are worth packing weights into panels, which are then multiplied faster. Bits.
//     bench_products shape q4_0 best 1, M=4096 K=4096, ROWS=16 and ROWS=17: the second is blocked_bytes
#define GB_INTERLEAVED_ROWS 16
// Columns of so many terms fill half of the lanes of most formats; up to GB_BYTE_DOTS_ROWS rows go as dots instead.
// Bits.
//     bench_products shape q4_0 best 1, M=8192 ROWS=1, K=256 and K=512
#define GB_INTERLEAVED_TERMS 0
// Bytes of weights between what is multiplied and what is prefetched, about: fewer and memory is waited for, more and
// the second-level cache may lose them again. And of one row, which reads them fastest.
//     bench_products shape q8_0 best 2, M=16000 K=4096, ROWS=2 and ROWS=1
#define GB_INTERLEAVED_AHEAD 8192
#define GB_ROW_AHEAD 16384

// Up to this many rows, columns are unpacked in registers for every four rows, instead of once into memory: for formats
// that are quick to unpack, and for all others.
//     bench_products shape q4_0 (quick), iq3_s (others) best 1, M=4096 K=4096, ROWS=4, 5, 8, 9
#define GB_DIRECT_ROWS_QUICK 8
#define GB_DIRECT_ROWS 4
// Columns of a block that meet the same stretch of the rows: more reuse the stretch more often, fewer need less memory
// for their sums.
//     bench_products shape q4_0 best 1, M=4096 K=14336 ROWS=4
#define GB_DIRECT_COLUMNS 32
// Terms of all rows that a block of columns meets at a time: with their scales they take 40 KiB, 48 where groups have
// 16 terms, about what a first-level cache has. Fewer, and columns are read in shorter pieces, which memory gives more
// slowly. Sums are kept by lanes, so bits do not depend on it.
//     bench_products shape q4_0 best 2, K=14336 M=13312, ROWS=1, 2, 4 and 8
#define GB_DIRECT_TERMS 32768

// Columns that are unpacked at a time, a multiple of the kernel's 3, and terms of each, whole
// vectors. With their sums they take 30 KiB and stay in the first-level cache. Fewer columns would reuse the rows less.
//     bench_products shape iq3_s best 1, M=4096 K=4096 ROWS=16
#define GB_UNPACKED_COLUMNS 12
#define GB_UNPACKED_TERMS 1024
// Stretches between what is unpacked and what is prefetched.
//     bench_products small iq3_s best 1, its line n 16
#define GB_UNPACKED_AHEAD 2

// -------------------------------------------------------------------------------------------- byte_dots, dots (dots.c)

// Rows at most that meet a column while it is unpacked into bytes: more are worth a panel of columns. Bits.
//     bench_products shape q4_0 avx2 1, M=4096 K=4096, ROWS=3 and ROWS=4
#define GB_BYTE_DOTS_ROWS 3
// Rows at most for which packing w does not pay: each element of w is used once a row, and packing uses it once more.
// Bits.
//     bench_products shape q4_0 best 1, EXACT=1 M=4096 K=4096, ROWS=2 and ROWS=3: the second is blocked_f32
#define GB_DOTS_ROWS 2
// Terms of a quantized column that are dequantized at a time, to the stack: they stay in the first-level cache. Bits.
//     bench_products shape q4_0 best 1, EXACT=1 M=4096 K=4096 ROWS=1
#define GB_DOTS_TERMS 1024
// Weights between which a thread tells gb_cpu_stopped what it did. Not measured: for up to four rows they count as
// somewhat less than GB_CPU_PACE, so that a thread looks whether the run is over after every second piece.
#define GB_DOTS_PIECE (1 << 18)

// ------------------------------------------------------------------------------------- dense_row, dense_rows (dense.c)

// Prefetches of one row: the next columns, if they are at most this many bytes ahead. Otherwise
// data that far ahead in the same column.
//     bench_products shape f32 best 1, ROWS=1, M=8192 K=512 (columns), M=512 K=65536 (the same one)
#define GB_DENSE_AHEAD_COLUMNS (1 << 18)
#define GB_DENSE_AHEAD 2048
// Rows at most: more are worth packing w. Sums of many terms add their lanes once for a long loop, which is dear for
// short ones. A tile of levels with few registers has two rows, and reads each weight three times as often: fewer rows
// there. Bits.
//     bench_products shape f32 best 1, M=4096, K=4096 ROWS=40 and 41; M=512, K=64 ROWS=8 and 9
//     bench_products shape f32 avx2 1, M=4096, K=4096 ROWS=20 and 21; M=512, K=64 ROWS=4 and 5
#define GB_DENSE_ROWS 40 // at levels with large tiles
#define GB_DENSE_ROWS_NARROW 20 // at any level
#define GB_DENSE_LONG 128 // sums of fewer terms are short:
#define GB_DENSE_SHORT 5 // so many times fewer rows
// Floats of the rows that stay in the first-level cache while columns are read. They decide the stretch of terms. Its
// minimum: each stretch ends with the sum of the lanes. Its maximum: one row would fill the cache.
// Changes bits of results.
//     bench_products shape f32 best 1, M=4096 K=4096, ROWS=4, 16, 40
#define GB_DENSE_FLOATS 8192
#define GB_DENSE_TERMS 512
#define GB_DENSE_TERMS_MAX 2048
// Weights of a block of columns, which stay in the second-level cache for all sets of rows.
//     bench_products shape f32 best 1, M=4096 K=4096 ROWS=40
#define GB_DENSE_WEIGHTS 24576

// -------------------------------------------------------------------------------------- blocked (blocked.c, packing.c)

// Terms of a stretch: a panel of rows of one stretch stays in the first-level cache. Longer stretches store sums less
// often. Of bytes: whole blocks of all formats. Bits.
//     bench_products batched f32 best 1; bench_products batched q4_0 best 1
#define GB_BLOCKED_TERMS 512
#define GB_BLOCKED_TERMS_BYTES 512
#define GB_BLOCKED_TERMS_PAIRS 512 // of bfloat16, at levels whose tiles are that fast; else twice GB_BLOCKED_TERMS
// Columns of a chunk, at most, a multiple of every level's tile: packed, a stretch of them stays in the second-level
// cache. Wider chunks read the panels of rows less often.
//     bench_products batched f32 best 1
#define GB_BLOCKED_COLUMNS 128
#define GB_BLOCKED_COLUMNS_BYTES 128
#define GB_BLOCKED_COLUMNS_PAIRS 256 // of bfloat16, at levels whose tiles are that fast
// Rows of a block, about: a chunk is packed once for so many. Fewer pack more often, more leave threads without work at
// the end.
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
// Rows and terms from which quantized weights are worth becoming pairs (unpacked_bf16) where the processor multiplies
// these faster than bytes: panels of pairs take longer than those of bytes, and a tile has 32 rows. Bits.
//     bench_products shape q8_0 amx 1, M=4096 K=4096, ROWS=32, 64 and 128; M=4096 ROWS=256, K=64 and 128; each with
//     GGML_CPU_TRAITS=bf16_dots=16 and bf16_dots=0.5
#define GB_QUANTIZED_PAIRS_ROWS 64
#define GB_QUANTIZED_PAIRS_TERMS 128
// Products of at most so many multiply-adds are divided among the threads once, and each packs what it needs: longer
// ones gain by packing together and by taking jobs from a common counter. And how many multiply-adds packing a float
// takes, by which rows or columns are divided.
//     bench_products shape f32 best 2, M=128 K=128 ROWS=128 and 512, M=512 K=512 ROWS=96, M=64 K=64 ROWS=512
#define GB_APART_TERMS (1 << 24)
#define GB_APART_PACKING 13
// Rows of f32 are read as they lie by products of at most so many columns: packing them saves little more than it
// takes.
//     bench_products shape f32 best 1, M=64, 512 and 1024 ROWS=512, K=64, 200 and 1000
#define GB_IN_PLACE_COLUMNS 512
// Scratch memory for the packed rows of a round: so much for each thread, unless that is less than so many rows, for
// which w is worth packing, if these take no more than that. Rounds pack w anew.
//     bench_products shape f32 best 1, M=1024 K=4096, ROWS=768 and ROWS=1536
#define GB_ROUND_BYTES (1 << 20)
#define GB_ROUND_ROWS 768
#define GB_ROUND_BYTES_MAX (64 << 20)

#endif // GB_CPU_OPS_PRODUCT_TUNING_H
