// keep.h - data that several nodes of a graph share: activations converted for products, tables of ROPE.
//
// The first node that needs such data makes it in scratch memory. The data are kept while a later
// node needs them and no node writes to their source.
#ifndef GB_CUDA_KEEP_H
#define GB_CUDA_KEEP_H

#include "cuda/queue.h"
#include "ggml-backend-module.h"

struct gb_cuda_backend;
struct gb_cuda_nodes;

enum { GB_CUDA_KEY = 144 };
// Identifies shared data by their source and every parameter that they depend on. Equal recipes give equal data.
struct gb_cuda_recipe {
    const ggml_tensor * source;     // the tensor that owns the memory, not a view
    size_t offset;                  // bytes; of the view
    const ggml_tensor * other;      // NULL, or a second tensor that the data depend on, not a view
    unsigned char key[GB_CUDA_KEY]; // parameters; the rest is zeros
};

struct gb_cuda_kept {
    gb_cuda_recipe recipe;
    void * memory; // in scratch memory
    size_t end;    // bytes of scratch memory up to its end
    int last;      // last node that needs it, as far as known
    int written;   // last node that writes its source, or -1
    bool made;     // false: only its memory is reserved
};

// Gives the recipe of the data that node i of b.nodes makes from its src[1]. False: the node needs none.
typedef bool gb_cuda_recipe_getter(const gb_cuda_backend & b, int i, gb_cuda_recipe * recipe);

// The source of a view is the tensor that it views. Copies key_size bytes of the key.
gb_cuda_recipe gb_cuda_recipe_of(const ggml_tensor * t, const void * key, size_t key_size);

// Returns memory for shared data; NULL on failure, reported. *there: the data are made already;
// else the caller makes them. They are kept if a later node needs them, for which `of` gives the
// same recipe.
void * gb_cuda_keep(gb_cuda_backend & b, const gb_cuda_recipe & recipe, size_t bytes, gb_cuda_recipe_getter * of,
    bool * there);

// Reserves memory for data whose source is computed by the nodes from the current one to `written`. If the caller makes
// the data, it sets `made` before the next call of gb_cuda_keep*. Else the first node that needs them makes them. NULL:
// no later node needs them, or there is no memory.
gb_cuda_kept * gb_cuda_keep_ahead(gb_cuda_backend & b, const gb_cuda_recipe & recipe, size_t bytes,
    gb_cuda_recipe_getter * of, int written);

// Computes gb_cuda_nodes.next_reader into `memory`. False: no host memory.
bool gb_cuda_note_readers(gb_array<int> & memory, const gb_cuda_nodes & nodes);

// Call it after nodes [i, i + n) are queued. Drops data that no later node needs, and data whose source was written.
void gb_cuda_kept_settle(gb_cuda_backend & b, const gb_cuda_nodes & nodes, int i, int n);

size_t gb_cuda_kept_end(const gb_cuda_backend & b); // bytes of scratch memory up to the end of all kept data

#endif // GB_CUDA_KEEP_H
