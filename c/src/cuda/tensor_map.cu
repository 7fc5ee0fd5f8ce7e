// tensor_map.cu - makes tensor maps by a function of the driver.
//
// The driver's header (cuda.h) is not included, so the function's constants are defined here.
#include "cuda/tensor_map.h"

#include <algorithm>

#include "cuda/driver.h"

namespace {

enum { TYPE_F16 = 6, TYPE_BF16 = 9, INTERLEAVE_NONE = 0, SWIZZLE_128B = 3, L2_256B = 3, OUTSIDE_IS_ZERO = 0 };

typedef int (*encode_tiled)(gb_tensor_map * map, int type, unsigned rank, void * address, const uint64_t * ne,
    const uint64_t * nb, const unsigned * box, const unsigned * steps, int interleave, int swizzle, int l2,
    int outside);

encode_tiled encoder(void) {
    static const encode_tiled found = reinterpret_cast<encode_tiled>(gb_cuda_driver_function("cuTensorMapEncodeTiled"));
    return found;
}

} // namespace

gb_tensor_layout gb_tensor_layout_of(const void * base, bool bf16, const int64_t (&ne)[4], const size_t (&nb)[3],
    int rows, int (&axis)[3]) {
    enum { WIDE = 64 }; // elements of a box along the rows
    int order[3] = { 0, 1, 2 };
    gb_tensor_layout t = { base, bf16, { ne[0], 1, 1, 1 }, {}, { WIDE, 1, 1, 1 } };
    std::stable_sort(order, order + 3, [&](int a, int b) {
        return (ne[a + 1] == 1) != (ne[b + 1] == 1) ? ne[b + 1] == 1 : ne[a + 1] != 1 && nb[a] < nb[b];
    });
    int64_t free_stride = (ne[0] * 2 + 15) / 16 * 16;
    for (int i = 0; i < 3; i++) {
        const int j = order[i];
        t.ne[i + 1] = ne[j + 1];
        t.nb[i] = ne[j + 1] == 1 ? free_stride : (int64_t) nb[j];
        t.box[i + 1] = j == 0 ? rows : 1;
        axis[j] = i + 1;
        free_stride = t.nb[i] * ne[j + 1];
    }
    return t;
}

bool gb_tensor_maps_exist(void) { return encoder() != nullptr; }

bool gb_tensor_map_is_possible(const gb_tensor_layout & t) {
    const int64_t most = (int64_t) 1 << 32;
    int64_t before = 2; // stride and extent of the previous dimension
    int64_t extent = t.ne[0];
    bool fits = (uintptr_t) t.base % 16 == 0 && t.ne[0] > 0 && t.ne[0] <= most;
    for (int i = 0; i < 3 && fits; i++) {
        fits = t.ne[i + 1] > 0 && t.ne[i + 1] <= most && t.nb[i] % 16 == 0 && t.nb[i] > 0 &&
               t.nb[i] < (int64_t) 1 << 40 && t.nb[i] % before == 0 && t.nb[i] / before >= extent;
        before = t.nb[i];
        extent = t.ne[i + 1];
    }
    return fits;
}

bool gb_tensor_map_make(const gb_tensor_layout & t, gb_tensor_map * map) {
    const encode_tiled encode = encoder();
    if (encode == nullptr || !gb_tensor_map_is_possible(t)) {
        return false;
    }
    const unsigned steps[4] = { 1, 1, 1, 1 };
    uint64_t ne[4], nb[3];
    unsigned box[4];
    for (int i = 0; i < 4; i++) {
        ne[i] = (uint64_t) t.ne[i];
        box[i] = (unsigned) t.box[i];
        if (i < 3) {
            nb[i] = (uint64_t) t.nb[i];
        }
    }
    return encode(map, t.bf16 ? TYPE_BF16 : TYPE_F16, 4, const_cast<void *>(t.base), ne, nb, box, steps,
               INTERLEAVE_NONE, SWIZZLE_128B, L2_256B, OUTSIDE_IS_ZERO) == 0;
}
