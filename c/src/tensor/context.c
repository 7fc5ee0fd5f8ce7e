// context.c - contexts: pools that hold tensors, graphs and their data one after another.
//
// An object is a 32-byte header and a payload rounded up to 16 bytes. It never moves, and is freed
// with the context. A context with its own memory is a growing list of chunks. Objects go to the
// open chunk (at, left). When it is full, a new chunk is opened. An object that would waste too
// much of a chunk gets its own chunk. A context in the caller's memory is one region that does not
// grow. Nothing in that region depends on the life of the context. Object offsets count pool bytes,
// as if there was only one region. So the end of the last object is the used size.
//
// Any number of threads may build in one context. `lock` (base/thread.h), held briefly, guards the
// members of the struct. Memory for chunks is allocated, and failures are reported, without the
// lock. A tensor has its type, shape and place before it is in the list, so iterating over the list
// finds only complete tensors. Each object records its thread, so a builder that fails drops only
// its own objects.
#include <stdio.h>

#include "tensor.h"

enum {
    CHUNK_ALIGN = 64,
    CHUNK_MIN = 16 * 1024,  // bytes of a new chunk when the pool grows
    CHUNK_MAX = 64 * 1024 * 1024,  // maximum of that
    NAMES_AT_ONCE = 256,  // names compared under one lock
};

// A piece of the pool. Its memory begins CHUNK_ALIGN bytes after the start of the struct.
struct chunk {
    struct chunk * next;
    size_t size;
};

struct ggml_context {
    struct chunk * chunks; // owned; NULL: the caller's memory
    char * mem_buffer;     // the caller's, or the first chunk's
    size_t mem_size;       // bytes of all chunks
    char * at;             // next object
    size_t left;           // bytes from there
    size_t used;           // bytes of all objects with their headers

    struct ggml_object * first; // creation order
    struct ggml_object * last;
    size_t shown; // offset of the newest object that an iteration has returned; 0: none

    bool no_alloc;
    struct ggml_scratch scratch; // data NULL: none
    int numbers[2];              // of nodes and of leafs: lower bound of the next automatic names

    struct gb_spin_lock * lock;
};

_Static_assert(sizeof(struct ggml_object) % GGML_MEM_ALIGN == 0, "payloads are aligned");
_Static_assert(sizeof(struct ggml_tensor) % GGML_MEM_ALIGN == 0, "tensor data is aligned");
_Static_assert(sizeof(struct chunk) <= CHUNK_ALIGN, "a chunk's memory is aligned");

// ------------------------------------------------------------------------------------------------------------ lifetime

// A new chunk that is not in the context yet. NULL if memory runs out (reported). Called without
// the lock.
static struct chunk * new_chunk(size_t size) {
    size_t total;
    GB_FAIL_IF_RETURNING(!gb_add_size(size, CHUNK_ALIGN, &total), NULL, GGML_STATUS_ALLOC_FAILED,
        "cannot allocate %zu bytes of context memory: the size overflows", size);
    return gb_aligned_alloc(CHUNK_ALIGN, total);
}

// Adds a chunk of `size` bytes to the context and returns its memory.
static char * add_chunk(struct ggml_context * ctx, struct chunk * chunk, size_t size) {
    chunk->next = ctx->chunks;
    chunk->size = size;
    GB_WRITE_RELAXED(ctx->chunks, chunk);
    ctx->mem_size += size;
    return (char *) chunk + CHUNK_ALIGN;
}

// The first chunk has the size that the program requested, because programs compute it from their
// needs.
static bool init_memory(struct ggml_context * ctx, struct ggml_init_params params) {
    if (params.mem_buffer != NULL) {
        ctx->mem_buffer = params.mem_buffer;
        ctx->mem_size = params.mem_size;
    } else {
        size_t size;
        GB_FAIL_IF_RETURNING(!gb_pad_size(GB_MAX(params.mem_size, (size_t) GGML_MEM_ALIGN), GGML_MEM_ALIGN, &size),
            false, GGML_STATUS_INVALID_ARGUMENT, "ggml_init: argument 'mem_size': %zu bytes overflow", params.mem_size);
        struct chunk * chunk = new_chunk(size);
        if (chunk == NULL) {
            return false;
        }
        ctx->mem_buffer = add_chunk(ctx, chunk, size);
    }
    ctx->at = ctx->mem_buffer;
    ctx->left = ctx->mem_size;
    ctx->lock = gb_spin_lock_for(ctx);
    return true;
}

// NULL if the caller's memory is not aligned, or memory runs out (reported).
struct ggml_context * ggml_init(struct ggml_init_params params) {
    GB_FAIL_IF_RETURNING((uintptr_t) params.mem_buffer % GGML_MEM_ALIGN != 0, NULL, GGML_STATUS_INVALID_ARGUMENT,
        "%s: argument 'mem_buffer': needs an address aligned to %d bytes, has %p", __func__, GGML_MEM_ALIGN,
        params.mem_buffer);
    struct ggml_context * ctx = GB_NEW(struct ggml_context);
    if (ctx == NULL) {
        return NULL;
    }
    ctx->no_alloc = params.no_alloc;
    if (!init_memory(ctx, params)) {
        gb_free(ctx);
        return NULL;
    }
    return ctx;
}

// Frees all tensors and graphs of the context, but not the caller's memory.
void ggml_free(struct ggml_context * ctx) {
    if (ctx == NULL) {
        return;
    }
    for (struct chunk * chunk = ctx->chunks; chunk != NULL;) {
        struct chunk * next = chunk->next;
        gb_aligned_free(chunk);
        chunk = next;
    }
    gb_free(ctx);
}

// Fixed memory needs no lock, because it never changes.
bool gb_context_has(const struct ggml_context * ctx, const void * pointer) {
    const uintptr_t at = (uintptr_t) pointer;
    if (!gb_context_is_growable(ctx)) {
        return at - (uintptr_t) ctx->mem_buffer < ctx->mem_size;
    }
    gb_spin_lock(ctx->lock);
    bool has = false;
    for (const struct chunk * chunk = ctx->chunks; chunk != NULL && !has; chunk = chunk->next) {
        has = at - (uintptr_t) chunk < CHUNK_ALIGN + chunk->size;
    }
    gb_spin_unlock(ctx->lock);
    return has;
}

bool gb_context_is_growable(const struct ggml_context * ctx) {
    return GB_READ_RELAXED(ctx->chunks) != NULL;  // this never changes
}

// ------------------------------------------------------------------------------------------------------------- objects

// The outcome of an attempt to make an object.
enum outcome { MADE, NEEDS_CHUNK, POOL_FULL, SCRATCH_FULL, OVERFLOWS };

// A requested object and its outcome. Attempts run with the lock held. Memory is allocated and
// failures are reported between them.
struct request {
    enum ggml_object_type type;
    size_t size; // of the payload
    // The content of a tensor, and its data at the context's usual place. NULL: no tensor.
    const struct ggml_tensor * layout;
    size_t data_size, alignment;
    bool in_pool;

    struct chunk * chunk; // of chunk_size bytes, for the next attempt; NULL: none
    size_t chunk_size;

    void * payload;
    size_t need, left, mem_size; // of the failure
    struct ggml_scratch scratch; // also of the failure
};

// The offset in the scratch at which the data fit. False: they do not fit.
static bool find_scratch(const struct ggml_scratch * scratch, const struct request * o, size_t * offs) {
    const size_t gap = (o->alignment - ((uintptr_t) scratch->data + scratch->offs) % o->alignment) % o->alignment;
    size_t end;
    return gb_add_size(scratch->offs, gap, offs) && gb_add_size(*offs, o->data_size, &end) && end <= scratch->size;
}

// Finds memory for an object of o->need bytes, in the open chunk or in the chunk of the request.
// The caller holds the lock, here and below.
static enum outcome take(struct ggml_context * ctx, struct request * o, char ** memory) {
    if (o->need <= ctx->left) {
        *memory = ctx->at;
        ctx->at += o->need;
        ctx->left -= o->need;
        return MADE;
    }
    if (!gb_context_is_growable(ctx)) {
        o->left = ctx->left;
        o->mem_size = ctx->mem_size;
        return POOL_FULL;
    }
    const size_t next = GB_MIN(GB_MAX(ctx->mem_size, (size_t) CHUNK_MIN), (size_t) CHUNK_MAX);
    const bool alone = o->need > next / 4;  // such an object gets its own chunk, and the open chunk stays open
    if (o->chunk == NULL || o->chunk_size < o->need) {
        o->chunk_size = alone ? o->need : next;
        return NEEDS_CHUNK;
    }
    *memory = add_chunk(ctx, o->chunk, o->chunk_size);
    if (o->chunk_size > o->need && o->chunk_size - o->need > ctx->left) {
        ctx->at = *memory + o->need;
        ctx->left = o->chunk_size - o->need;
    }
    o->chunk = NULL;
    return MADE;
}

// Makes the memory the last object of the list, and returns its payload.
static inline void * begin_object(struct ggml_context * ctx, char * memory, size_t size, enum ggml_object_type type,
    uint32_t thread) {
    struct ggml_object * object = (struct ggml_object *) (void *) memory;
    *object = (struct ggml_object){ .offs = ctx->used + sizeof(*object), .size = size, .type = type };
    gb_object_set_maker(object, thread);
    ctx->used += size + sizeof(*object);
    *(ctx->last != NULL ? &ctx->last->next : &ctx->first) = object;
    ctx->last = object;
    return object + 1;
}

// Fills in a tensor before other threads can see it. `behind`: its data follow the struct, unless
// the tensor is a view.
static inline void fill(struct ggml_tensor * tensor, const struct ggml_tensor * layout, bool behind) {
    memset(tensor, 0, sizeof(*tensor));
    tensor->type = layout->type;
    memcpy(tensor->ne, layout->ne, sizeof(tensor->ne));
    memcpy(tensor->nb, layout->nb, sizeof(tensor->nb));
    tensor->view_src = layout->view_src;
    tensor->view_offs = layout->view_offs;
    gb_tensor_copy_state(tensor, layout);
    tensor->data = behind && layout->view_src == NULL ? tensor + 1 : layout->data;
}

// One attempt to make the object, with the lock held. If the outcome is not MADE, nothing has
// changed.
static enum outcome attempt(struct ggml_context * ctx, struct request * o, uint32_t thread) {
    const bool is_tensor = o->layout != NULL;
    const bool in_scratch = is_tensor && !o->in_pool && !ctx->no_alloc && ctx->scratch.data != NULL;
    const bool behind = is_tensor && (o->in_pool || (!ctx->no_alloc && !in_scratch));
    size_t offs = 0, size = o->size;
    if ((behind && !gb_add_size(size, o->data_size, &size)) || !gb_pad_size(size, GGML_MEM_ALIGN, &size) ||
        !gb_add_size(size, sizeof(struct ggml_object), &o->need)) {
        return OVERFLOWS;
    }
    if (in_scratch && !find_scratch(&ctx->scratch, o, &offs)) {
        o->scratch = ctx->scratch;
        return SCRATCH_FULL;
    }
    char * memory;
    const enum outcome outcome = take(ctx, o, &memory);
    if (outcome != MADE) {
        return outcome;
    }
    o->payload = begin_object(ctx, memory, size, o->type, thread);
    if (is_tensor) {
        fill(o->payload, o->layout, behind);
    }
    if (in_scratch) {
        ((struct ggml_tensor *) o->payload)->data = (char *) ctx->scratch.data + offs;
        ctx->scratch.offs = offs + o->data_size;
    }
    return MADE;
}

// Reports why no object was made, from the numbers that the attempt stored in the request.
static void report(const struct request * o, enum outcome outcome) {
    if (outcome == POOL_FULL) {
        gb_fail(GGML_STATUS_ALLOC_FAILED,
            "context memory is full: needs %zu bytes, has %zu of %zu available (memory of the caller does not grow)",
            o->need, o->left, o->mem_size);
    } else if (outcome == SCRATCH_FULL) {
        gb_fail(GGML_STATUS_ALLOC_FAILED,
            "scratch memory is full: a tensor needs %zu bytes at offset %zu, has %zu bytes in all", o->data_size,
            o->scratch.offs, o->scratch.size);
    } else if (o->layout != NULL) {
        gb_fail(GGML_STATUS_ALLOC_FAILED, "context memory: a tensor of %zu bytes overflows", o->data_size);
    } else {
        gb_fail(GGML_STATUS_ALLOC_FAILED, "context memory: an object of %zu bytes overflows", o->size);
    }
}

// Makes the object and returns its payload. NULL on failure (reported). Repeats the attempt as long
// as it needs another chunk.
static void * make(struct ggml_context * ctx, struct request * o) {
    const uint32_t thread = gb_thread_number();
    enum outcome outcome;
    for (;;) {
        gb_spin_lock(ctx->lock);
        outcome = attempt(ctx, o, thread);
        gb_spin_unlock(ctx->lock);
        if (outcome != NEEDS_CHUNK) {
            break;
        }
        gb_aligned_free(o->chunk);  // too small, because another thread has changed no_alloc
        o->chunk = new_chunk(o->chunk_size);
        if (o->chunk == NULL) {
            return NULL;
        }
    }
    if (o->chunk != NULL) { // not needed, because another thread has opened one
        gb_aligned_free(o->chunk);
    }
    if (outcome == MADE) {
        return o->payload;
    }
    report(o, outcome);
    return NULL;
}

void * gb_context_alloc(struct ggml_context * ctx, enum ggml_object_type type, size_t size) {
    return make(ctx, &(struct request){ .type = type, .size = size });
}

// Makes a tensor in the usual case, without attempt(): no scratch, and the open chunk has space.
// NULL in other cases.
static struct ggml_tensor * new_tensor_at_once(struct ggml_context * ctx, const struct ggml_tensor * layout,
    size_t data_size, bool in_pool) {
    const uint32_t thread = gb_thread_number();
    struct ggml_tensor * tensor = NULL;
    gb_spin_lock(ctx->lock);
    const bool behind = in_pool || !ctx->no_alloc;
    const size_t data = behind ? data_size : 0, left = ctx->left;
    if (left >= 2 * sizeof(*tensor) && data <= left - 2 * sizeof(*tensor) &&
        (in_pool || ctx->no_alloc || ctx->scratch.data == NULL)) {
        const size_t size = GGML_PAD(sizeof(*tensor) + data, (size_t) GGML_MEM_ALIGN),
                     need = size + sizeof(struct ggml_object);
        char * memory = ctx->at;
        ctx->at = memory + need;
        ctx->left = left - need;
        tensor = begin_object(ctx, memory, size, GGML_OBJECT_TENSOR, thread);
        fill(tensor, layout, behind);
    }
    gb_spin_unlock(ctx->lock);
    return tensor;
}

struct ggml_tensor * gb_context_new_tensor(struct ggml_context * ctx, const struct ggml_tensor * layout,
    size_t data_size, size_t alignment, bool in_pool) {
    struct ggml_tensor * tensor = new_tensor_at_once(ctx, layout, data_size, in_pool);
    return tensor != NULL ? tensor
                          : make(ctx, &(struct request){ .type = GGML_OBJECT_TENSOR,
                                          .size = sizeof(struct ggml_tensor),
                                          .layout = layout,
                                          .data_size = data_size,
                                          .alignment = alignment,
                                          .in_pool = in_pool });
}

// Turns the thread's objects into unused memory, neither tensors nor graphs. The memory stays,
// because other objects follow it or a caller may iterate from it.
static void disown(struct ggml_object * from, uint32_t thread) {
    for (struct ggml_object * o = from; o != NULL; o = o->next) {
        if (gb_object_maker(o) == thread) {
            o->type = GGML_OBJECT_WORK_BUFFER;
        }
    }
}

// Removes `dropped` and all objects after it, if the thread made them all and no iteration has
// returned one. Otherwise only disowns the thread's objects.
static void drop(struct ggml_context * ctx, struct ggml_object * dropped, uint32_t thread) {
    bool alone = dropped->offs > ctx->shown;  // no iteration has returned it
    for (const struct ggml_object * o = dropped; alone && o != NULL; o = o->next) {
        alone = gb_object_maker(o) == thread;
    }
    if (!alone) {
        disown(dropped, thread);
        return;
    }
    struct ggml_object * before = NULL;  // the object before the dropped one
    for (struct ggml_object * o = ctx->first; o != dropped; o = o->next) {
        before = o;
    }
    const size_t used = dropped->offs - sizeof(*dropped);  // used bytes before it was made
    // If all dropped objects are in the open chunk, their memory can be reused. Chunks have gaps
    // between them, so the sums differ in other cases.
    if ((uintptr_t) ctx->at - (uintptr_t) dropped == ctx->used - used) {
        ctx->left += ctx->used - used;
        ctx->at = (char *) dropped;
    }
    ctx->used = used;
    ctx->last = before;
    *(before != NULL ? &before->next : &ctx->first) = NULL;
}

// Holds the lock throughout, because no other thread may add an object until the end.
void gb_context_drop(struct ggml_context * ctx, void * payload) {
    const uint32_t thread = gb_thread_number();
    gb_spin_lock(ctx->lock);
    drop(ctx, (struct ggml_object *) payload - 1, thread);
    gb_spin_unlock(ctx->lock);
}

// Nodes and leafs have separate numbers.
int gb_context_number(struct ggml_context * ctx, bool is_leaf, int least) {
    gb_spin_lock(ctx->lock);
    const int number = GB_MAX(ctx->numbers[is_leaf], least);
    ctx->numbers[is_leaf] = number + 1;
    gb_spin_unlock(ctx->lock);
    return number;
}

void gb_context_number_taken(struct ggml_context * ctx, bool is_leaf, int number) {
    gb_spin_lock(ctx->lock);
    ctx->numbers[is_leaf] = GB_MAX(ctx->numbers[is_leaf], number + 1);
    gb_spin_unlock(ctx->lock);
}

// ---------------------------------------------------------------------------------------------------- what is in there

// The first tensor from `object` on. NULL: there is none. The caller holds the lock.
static struct ggml_object * find_tensor(struct ggml_object * object) {
    while (object != NULL && object->type != GGML_OBJECT_TENSOR) {
        object = object->next;
    }
    return object;
}

// The object after `object`. The first one of the context for NULL.
static struct ggml_object * next_object(const struct ggml_context * ctx, const struct ggml_object * object) {
    return object != NULL ? object->next : ctx->first;
}

// Records that a caller may continue from the object, so it must stay in the list.
static void show(const struct ggml_context * ctx, const struct ggml_object * object) {
    if (object != NULL && object->offs > ctx->shown) {
        ((struct ggml_context *) ctx)->shown = object->offs;
    }
}

// The first tensor after the object, from the beginning for NULL. It stays in the list from now on.
static struct ggml_tensor * tensor_after(const struct ggml_context * ctx, const struct ggml_object * object) {
    gb_spin_lock(ctx->lock);
    struct ggml_object * found = find_tensor(next_object(ctx, object));
    show(ctx, found);
    gb_spin_unlock(ctx->lock);
    return found ? (struct ggml_tensor *) (void *) (found + 1) : NULL;
}

struct ggml_tensor * ggml_get_first_tensor(const struct ggml_context * ctx) {
    GB_CHECK_ARG_RETURNING(ctx, NULL);
    return tensor_after(ctx, NULL);
}

struct ggml_tensor * ggml_get_next_tensor(const struct ggml_context * ctx, struct ggml_tensor * tensor) {
    GB_CHECK_ARG_RETURNING(ctx, NULL);
    GB_CHECK_ARG_RETURNING(tensor, NULL);
    return tensor_after(ctx, (const struct ggml_object *) (const void *) tensor - 1);
}

// Compares the names of some tensors after *at, and advances it. The lock is held only briefly, so
// a long list is searched in parts. True: the search has ended.
static bool look_for(const struct ggml_context * ctx, const char * name, struct ggml_object ** at,
    struct ggml_tensor ** found) {
    char text[GGML_MAX_NAME];
    gb_spin_lock(ctx->lock);
    struct ggml_object * object = *at;
    for (int n = 0; n < NAMES_AT_ONCE && *found == NULL; n++) {
        object = find_tensor(next_object(ctx, object));
        if (object == NULL) {
            break;
        }
        *at = object;
        struct ggml_tensor * tensor = (struct ggml_tensor *) (void *) (object + 1);
        if (strcmp(gb_tensor_read_name(tensor, text), name) == 0) {
            *found = tensor;
        }
    }
    show(ctx, object);
    gb_spin_unlock(ctx->lock);
    return object == NULL || *found != NULL;
}

struct ggml_tensor * ggml_get_tensor(struct ggml_context * ctx, const char * name) {
    GB_CHECK_ARG_RETURNING(ctx, NULL);
    GB_CHECK_ARG_RETURNING(name, NULL);
    struct ggml_object * at = NULL;
    struct ggml_tensor * found = NULL;
    while (!look_for(ctx, name, &at, &found)) {
    }
    return found;  // NULL is not an error, because programs test for a tensor this way
}

// The result may miss tensors that other threads add during the call.
size_t ggml_get_max_tensor_size(const struct ggml_context * ctx) {
    GB_CHECK_ARG_RETURNING(ctx, 0);
    size_t largest = 0;
    for (struct ggml_tensor * t = ggml_get_first_tensor(ctx); t != NULL; t = ggml_get_next_tensor(ctx, t)) {
        largest = GB_MAX(largest, ggml_nbytes(t));
    }
    return largest;
}

size_t ggml_used_mem(const struct ggml_context * ctx) {
    GB_CHECK_ARG_RETURNING(ctx, 0);
    gb_spin_lock(ctx->lock);
    const size_t used = ctx->used;
    gb_spin_unlock(ctx->lock);
    return used;
}

void * ggml_get_mem_buffer(const struct ggml_context * ctx) {
    GB_CHECK_ARG_RETURNING(ctx, NULL);
    return ctx->mem_buffer;
}

size_t ggml_get_mem_size(const struct ggml_context * ctx) {
    GB_CHECK_ARG_RETURNING(ctx, 0);
    gb_spin_lock(ctx->lock);
    const size_t size = ctx->mem_size;
    gb_spin_unlock(ctx->lock);
    return size;
}

// ----------------------------------------------------------------------------------------------- where data comes from

bool ggml_get_no_alloc(struct ggml_context * ctx) {
    GB_CHECK_ARG_RETURNING(ctx, false);
    gb_spin_lock(ctx->lock);
    const bool no_alloc = ctx->no_alloc;
    gb_spin_unlock(ctx->lock);
    return no_alloc;
}

void ggml_set_no_alloc(struct ggml_context * ctx, bool no_alloc) {
    GB_CHECK_ARG_RETURNING(ctx, );
    gb_spin_lock(ctx->lock);
    ctx->no_alloc = no_alloc;
    gb_spin_unlock(ctx->lock);
}

// Returns the used bytes of the old scratch, so that a program can return to it.
size_t ggml_set_scratch(struct ggml_context * ctx, struct ggml_scratch scratch) {
    GB_CHECK_ARG_RETURNING(ctx, 0);
    gb_spin_lock(ctx->lock);
    const size_t offs = ctx->scratch.data ? ctx->scratch.offs : 0;
    ctx->scratch = scratch;
    gb_spin_unlock(ctx->lock);
    return offs;
}

// ------------------------------------------------------------------------------------------------------------ printing

// Dropped objects count as work buffers.
static const char * object_type_name(enum ggml_object_type type) {
    switch (type) {
        case GGML_OBJECT_TENSOR: return "tensor";
        case GGML_OBJECT_GRAPH: return "graph";
        case GGML_OBJECT_WORK_BUFFER: return "buffer";
    }
    return "unknown";
}

void ggml_print_object(const struct ggml_object * obj) {
    GB_CHECK_ARG_RETURNING(obj, );
    printf("  %-7s at %10zu, %10zu bytes", object_type_name(obj->type), obj->offs, obj->size);
    if (obj->type == GGML_OBJECT_TENSOR) {
        char text[GB_DESCRIBE_SIZE];
        printf(": %s", gb_plain_text(gb_describe((const struct ggml_tensor *) (const void *) (obj + 1), text)));
    }
    putchar('\n');
}

// The iteration of ggml_print_objects. NULL: from the beginning.
static const struct ggml_object * object_after(const struct ggml_context * ctx, const struct ggml_object * object) {
    gb_spin_lock(ctx->lock);
    const struct ggml_object * next = next_object(ctx, object);
    show(ctx, next);
    gb_spin_unlock(ctx->lock);
    return next;
}

void ggml_print_objects(const struct ggml_context * ctx) {
    GB_CHECK_ARG_RETURNING(ctx, );
    printf("context: %zu of %zu bytes used, %s\n", ggml_used_mem(ctx), ggml_get_mem_size(ctx),
        gb_context_is_growable(ctx) ? "grows" : "memory of the caller");
    for (const struct ggml_object * obj = object_after(ctx, NULL); obj != NULL; obj = object_after(ctx, obj)) {
        ggml_print_object(obj);
    }
}
