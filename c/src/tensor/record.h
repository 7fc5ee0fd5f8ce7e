// record.h - a tensor as bytes: what graph files (graph_file.c) and nodes sent to another process (nodes.h) have in
// common.
//
//   record   u32 type, op; 4 x (u64 ne, nb); name; op_params
//   sources  GGML_MAX_SRC x i32: -1, or the number of a tensor
//
// All in the byte order of the machine, without padding. The last byte of a name is 0 for every reader; if the byte
// before it is 0 already, it holds the number of dimensions plus one. Records hold no addresses: functions of a program
// mean nothing in another process, so tensors that call one are no records.
//
// Nothing that is read is believed: every number is checked before it is used, and whoever reads has only to check what
// it adds itself. A reader that finds something wrong writes what it is into `wrong`, and reports nothing.
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
// `as_leaf`: without operator and parameters, whatever computes it. `named`: false: without its name.
void gb_record_write(const struct ggml_tensor * t, bool as_leaf, bool named, uint8_t to[GB_RECORD_SIZE]);
// Into a struct that is no tensor of a context yet, and is zero but for that. After success its element count and
// extent can be computed.
bool gb_record_read(const uint8_t from[GB_RECORD_SIZE], struct ggml_tensor * t, char wrong[GB_RECORD_WRONG_SIZE]);

// The numbers of a tensor's sources: -1 where there is none, GB_PTRMAP_ABSENT for one that is not in the map.
void gb_sources_find(const struct ggml_tensor * t, const struct gb_ptrmap * numbers, int64_t found[GGML_MAX_SRC]);
// The first source whose number is not allowed for tensor number `own`: sources come before those that read them, but
// for a CPY, which may name itself behind its first source (ggml_cast makes such nodes). -1: all are.
int gb_sources_misfit(enum ggml_op op, const int64_t numbers[GGML_MAX_SRC], int64_t own);
void gb_sources_write(const int64_t numbers[GGML_MAX_SRC], uint8_t to[GB_SOURCES_SIZE]);
void gb_sources_read(const uint8_t from[GB_SOURCES_SIZE], int64_t numbers[GGML_MAX_SRC]);

#endif // GB_TENSOR_RECORD_H
