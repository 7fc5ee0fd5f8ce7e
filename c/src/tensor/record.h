// record.h - a tensor as bytes. Graph files (graph_file.c) and messages of nodes (nodes.h) use it.
//
//   record   u32 type, op; 4 x (u64 ne, nb); name; op_params
//   sources  GGML_MAX_SRC x i32: -1, or the number of a tensor
//
// All numbers have the byte order of the machine, without padding. If a name leaves the last two of
// its bytes free, the last one holds the number of dimensions plus one. Readers set that byte to 0.
// Records hold no addresses, because a program's functions mean nothing in another process. So a
// tensor that calls a function of the program has no record.
//
// Records are untrusted. Every number is checked before use, so a caller only has to check the data
// that it adds. A reader that finds a fault writes it to `wrong` and reports nothing.
#ifndef GB_TENSOR_RECORD_H
#define GB_TENSOR_RECORD_H

#include "base/hash.h"
#include "tensor/tensor.h"

enum {
    GB_RECORD_SIZE = 4 + 4 + GGML_MAX_DIMS * 16 + GGML_MAX_NAME + GGML_MAX_OP_PARAMS,
    GB_SOURCES_SIZE = GGML_MAX_SRC * 4,
    GB_RECORD_WRONG_SIZE = 160,
};

// True if a record can hold the tensor: it calls no function of the program.
bool gb_record_holds(const struct ggml_tensor * t);
// `as_leaf`: without operator and parameters. `named` false: without its name.
void gb_record_write(const struct ggml_tensor * t, bool as_leaf, bool named, uint8_t to[GB_RECORD_SIZE]);
// Reads into a zeroed struct that is not a tensor of a context yet. After success its element count
// and extent can be computed.
bool gb_record_read(const uint8_t from[GB_RECORD_SIZE], struct ggml_tensor * t, char wrong[GB_RECORD_WRONG_SIZE]);

// The numbers of a tensor's sources. -1: no source. GB_PTRMAP_ABSENT: the map does not have the
// source.
void gb_sources_find(const struct ggml_tensor * t, const struct gb_ptrmap * numbers, int64_t found[GGML_MAX_SRC]);
// The first source with an invalid number for tensor number `own`. -1: all are valid. Sources come
// before their readers. The exception is CPY, which may name itself after its first source
// (ggml_cast makes such nodes).
int gb_sources_misfit(enum ggml_op op, const int64_t numbers[GGML_MAX_SRC], int64_t own);
void gb_sources_write(const int64_t numbers[GGML_MAX_SRC], uint8_t to[GB_SOURCES_SIZE]);
void gb_sources_read(const uint8_t from[GB_SOURCES_SIZE], int64_t numbers[GGML_MAX_SRC]);

#endif // GB_TENSOR_RECORD_H
