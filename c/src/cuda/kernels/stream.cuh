// stream.cuh - how matvec_quick.cuh and few_rows.cuh read quantized weights: one constant, GB_STREAM.
//
// `sh tools/check_cuda.sh 90 16 streams` compiles and measures all values on a device. Measured on an
// H200 (copy rate 4.2 TB/s, 132 multiprocessors), weights of 8192 x 8192: one row of Q4_0 reads at
// 54 % of the copy rate, eight rows at 30 %. At 750 ns, 24 KB in flight on a multiprocessor are
// enough for 4.2 TB/s. The kernel of one row has 71 KB in flight, and that of few rows 55 KB. So a
// lack of bytes in flight is not the first cause.
//
//   0  as measured. One row: of 10.8 cycles between two instructions of a warp, 5.8 go to waiting for
//      loads. The loop waits for the weights, then loads 48 bytes of activations for each lane, and
//      waits for the L2 cache again: 8 times for a row of 8,192. Few rows: two lanes copy a row, so
//      an instruction touches 16 rows. For a row of a stage, whole sectors have 1.5 to 2.6 times its
//      bytes (table). That is 59 MB, and the panels are 20 MB: the 79 MB that ncu counted. The L2
//      cache is the busiest unit: 61 % with eight rows of Q4_0, 72 % with eight rows of Q8_0. (With
//      16 rows of IQ4_XS it is at 31 %, so this is not the cause there.)
//   1  repairs that. Activations are loaded before the wait for the weights, so both waits overlap.
//      Lanes copy the chunks of a row side by side:
//
//                                               Q4_0, Q4_K   Q8_0      Q6_K      IQ4_XS
//        bytes of a row in a stage              144          272       210       136
//        bytes of the sectors, 0 and 1          224, 164     416, 296  336, 246  352, 172
//        lines of a warp's stage, 0 and 1       88, 36       160, 55   126, 47   152, 40
//
//   2  as 1, with more warps and bytes in flight. One row: a warp has two rows of weights
//      instead of four, and twice the stages, so it reads activations twice as often.
//
//                                                  0 and 1   2
//        warps for 8192 rows                       2,048     4,096
//        warps on a multiprocessor, at most 64     15.5      20
//        bytes in flight, of a warp                4.6 KB    5.8 KB
//
//      Few rows: more warps share rows, up to three blocks on a multiprocessor.
//   3  as 2, but only as many blocks as fit, each with several rows, one after the other. The ring of
//      stages crosses rows: copies of the next rows begin before the sums of these are stored. A
//      block that starts anew waits 0.75 us for memory. That counts from two waves of blocks on, as
//      in a matrix of 32,000 rows; 8192 rows of Q4_0 are 1.6 waves and take at least 9 us.
//
// Sectors, lines, warps and bytes in flight of 1 to 3 are counted. No device has measured them.
#ifndef GB_CUDA_KERNELS_STREAM_CUH
#define GB_CUDA_KERNELS_STREAM_CUH

#include "cuda/launch.cuh"

#ifndef GB_STREAM
#    define GB_STREAM 0 // until a device says that another one is faster
#endif

struct gb_stream {
    static constexpr bool early = GB_STREAM >= 1; // activations before the wait; lanes side by side
    static constexpr int rows = GB_STREAM >= 2 ? 2 : 4; // of weights, for a warp, with one column
    static constexpr int stages = 4 / rows; // factor for one column
    static constexpr int blocks = GB_STREAM >= 2 ? 3 : 1; // few rows: on a multiprocessor, before warps share no rows
    static constexpr bool rolls = GB_STREAM >= 3; // a block has several rows, one after the other
};

// Blocks along x, so that each has as many of `blocks` pieces of work as the others, or one more. There are `others`
// blocks for each; `places` blocks run at once.
inline int64_t gb_stream_grid(int64_t blocks, int64_t others, int64_t places) {
    const int64_t rounds = (blocks * others + places - 1) / places;
    return gb_stream::rolls ? (blocks + rounds - 1) / rounds : blocks;
}

#endif // GB_CUDA_KERNELS_STREAM_CUH
