// tensor_map.h - what a device of compute capability 9.0 is told about a tensor that it copies tiles of.
//
// A map is a value of 128 bytes that only the driver can make, on the host; a kernel gets it as a part of a parameter.
// It holds the address: who lists a launch lists the map with it, and a graph that is updated gets another.
#ifndef GB_CUDA_TENSOR_MAP_H
#define GB_CUDA_TENSOR_MAP_H

#include <stddef.h>
#include <stdint.h>

struct alignas(128) gb_tensor_map {
    uint64_t opaque[16];
};

// Elements of 16 bits. ne: extents, the rows of ne[0] are dense; nb: bytes from one to the next along dimensions 1 to
// 3. box: the tile, 64 elements along the rows, and at most 256 along the others.
struct gb_tensor_layout {
    const void * base;
    bool bf16; // else f16
    int64_t ne[4];
    int64_t nb[3];
    int box[4];
};

// Rows of ne[0] elements, whose dimensions 1 to 3 are put in the order of their strides, as a map wants them; those of
// one element come last, where any stride will do. axis[i]: where dimension i + 1 went, 1 to 3. `rows`: of dimension 1
// in a tile, of 64 elements each.
gb_tensor_layout gb_tensor_layout_of(const void * base, bool bf16, const int64_t (&ne)[4], const size_t (&nb)[3],
    int rows, int (&axis)[3]);

// What the driver's documentation asks for: addresses and strides that 16 divides, and dimensions in the order of their
// strides, each of which holds the one before it a whole number of times.
bool gb_tensor_map_is_possible(const gb_tensor_layout & layout);

bool gb_tensor_maps_exist(void); // for this driver

// False: it is not possible, or the driver has no tensor maps or refuses this one.
bool gb_tensor_map_make(const gb_tensor_layout & layout, gb_tensor_map * map);

#endif // GB_CUDA_TENSOR_MAP_H
