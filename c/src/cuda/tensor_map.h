// tensor_map.h - descriptions of tensors for the copy engine of compute capability 9.0.
//
// A map is a value of 128 bytes that the driver makes on the host. A kernel gets it as part of a
// parameter. The map holds the address of the data, so a listed launch contains it, and an updated
// graph gets a new map.
#ifndef GB_CUDA_TENSOR_MAP_H
#define GB_CUDA_TENSOR_MAP_H

#include <stddef.h>
#include <stdint.h>

struct alignas(128) gb_tensor_map {
    uint64_t opaque[16];
};

// Elements of 16 bits. ne: extents; rows of ne[0] are dense. nb: strides of dimensions 1 to 3, in bytes. box: the tile,
// 64 elements along the rows, at most 256 along the others.
struct gb_tensor_layout {
    const void * base;
    bool bf16; // else f16
    int64_t ne[4];
    int64_t nb[3];
    int box[4];
};

// Describes rows of ne[0] elements. Sorts dimensions 1 to 3 by stride, as a map requires; dimensions of one element
// come last. axis[i]: new place of dimension i + 1, 1 to 3. The tile has 64 elements of `rows` rows of dimension 1.
gb_tensor_layout gb_tensor_layout_of(const void * base, bool bf16, const int64_t (&ne)[4], const size_t (&nb)[3],
    int rows, int (&axis)[3]);

// True if the layout fulfils the driver's conditions: addresses and strides are multiples of 16, strides ascend, and
// each is a multiple of the one before.
bool gb_tensor_map_is_possible(const gb_tensor_layout & layout);

bool gb_tensor_maps_exist(void); // the driver supports them

// False: the layout is not possible, or the driver has no tensor maps or refuses this one.
bool gb_tensor_map_make(const gb_tensor_layout & layout, gb_tensor_map * map);

#endif // GB_CUDA_TENSOR_MAP_H
