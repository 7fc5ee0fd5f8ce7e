// context.c - contexts: pools in which tensors, graphs and their data lie one after another.
//
// An object is a 32-byte header and a payload rounded up to 16 bytes; it is never moved and never freed before the context. With
// memory of its own a context is a list of chunks and grows: objects go to the open chunk (at, left), a new chunk is opened
// when that is full, and an object that would waste too much of one gets a chunk for itself. With the caller's memory there is
// one region and no growth, and nothing in it depends on the context's life.
// Object offsets count pool bytes, as if there was one region only: the end of the last object is what is used.
#include <stdio.h>

#include "tensor.h"

enum {
    CHUNK_ALIGN = 64,
    CHUNK_MIN   = 16 * 1024,        // bytes of a chunk that is opened when the pool grows
    CHUNK_MAX   = 64 * 1024 * 1024, // ditto, at most
};

struct chunk { // its memory follows at CHUNK_ALIGN bytes
    struct chunk * next;
};

struct ggml_context {
    struct chunk * chunks;     // owned; NULL: the caller's memory
    char *         mem_buffer; // the caller's, or the first chunk's
    size_t         mem_size;   // bytes of all chunks
    char *         at;         // next object
    size_t         left;       // bytes from there
    size_t         used;       // bytes of all objects with their headers

    struct ggml_object * first; // creation order
    struct ggml_object * last;

    bool                no_alloc;
    struct ggml_scratch scratch; // data NULL: none
};

_Static_assert(sizeof(struct ggml_object) % GGML_MEM_ALIGN == 0, "payloads are aligned");
_Static_assert(sizeof(struct ggml_tensor) % GGML_MEM_ALIGN == 0, "tensor data is aligned");
_Static_assert(sizeof(struct chunk) <= CHUNK_ALIGN, "a chunk's memory is aligned");

// ------------------------------------------------------------------------------------------------------------------- lifetime

static char * add_chunk(struct ggml_context * ctx, size_t size) {
    size_t total;
    GB_FAIL_IF(!gb_add_size(size, CHUNK_ALIGN, &total), NULL, GGML_STATUS_ALLOC_FAILED,
               "cannot allocate %zu bytes of context memory: the size overflows", size);
    struct chunk * chunk = gb_aligned_alloc(CHUNK_ALIGN, total);
    if (chunk == NULL) {
        return NULL;
    }
    chunk->next = ctx->chunks;
    ctx->chunks = chunk;
    ctx->mem_size += size;
    return (char *) chunk + CHUNK_ALIGN;
}

static bool init_memory(struct ggml_context * ctx, struct ggml_init_params params) {
    if (params.mem_buffer != NULL) {
        ctx->mem_buffer = params.mem_buffer;
        ctx->mem_size   = params.mem_size;
    } else {
        size_t size;
        GB_FAIL_IF(!gb_pad_size(GB_MAX(params.mem_size, (size_t) GGML_MEM_ALIGN), GGML_MEM_ALIGN, &size), false,
                   GGML_STATUS_INVALID_ARGUMENT, "ggml_init: argument 'mem_size': %zu bytes overflow", params.mem_size);
        ctx->mem_buffer = add_chunk(ctx, size);
    }
    ctx->at   = ctx->mem_buffer;
    ctx->left = ctx->mem_size;
    return ctx->mem_buffer != NULL;
}

struct ggml_context * ggml_init(struct ggml_init_params params) {
    GB_FAIL_IF((uintptr_t) params.mem_buffer % GGML_MEM_ALIGN != 0, NULL, GGML_STATUS_INVALID_ARGUMENT,
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

bool gb_context_is_growable(const struct ggml_context * ctx) {
    return ctx->chunks != NULL;
}

// -------------------------------------------------------------------------------------------------------------------- objects

// Memory for `need` bytes of object, from the open chunk, a new one, or one of its own. NULL and reported.
static char * take(struct ggml_context * ctx, size_t need) {
    if (need <= ctx->left) {
        char * ptr = ctx->at;
        ctx->at += need;
        ctx->left -= need;
        return ptr;
    }
    GB_FAIL_IF(!gb_context_is_growable(ctx), NULL, GGML_STATUS_ALLOC_FAILED,
               "context memory is full: needs %zu bytes, has %zu of %zu available (memory of the caller does not grow)", need,
               ctx->left, ctx->mem_size);
    const size_t next = GB_MIN(GB_MAX(ctx->mem_size, (size_t) CHUNK_MIN), (size_t) CHUNK_MAX);
    if (need > next / 4) {
        return add_chunk(ctx, need); // the open chunk stays open
    }
    char * ptr = add_chunk(ctx, next);
    if (ptr != NULL) {
        ctx->at   = ptr + need;
        ctx->left = next - need;
    }
    return ptr;
}

void * gb_context_alloc(struct ggml_context * ctx, enum ggml_object_type type, size_t size) {
    size_t padded, need;
    GB_FAIL_IF(!gb_pad_size(size, GGML_MEM_ALIGN, &padded) || !gb_add_size(padded, sizeof(struct ggml_object), &need), NULL,
               GGML_STATUS_ALLOC_FAILED, "context memory: an object of %zu bytes overflows", size);
    struct ggml_object * object = (struct ggml_object *) (void *) take(ctx, need);
    if (object == NULL) {
        return NULL;
    }
    *object = (struct ggml_object){ .offs = ctx->used + sizeof(*object), .size = padded, .type = type };
    ctx->used += need;
    if (ctx->last != NULL) {
        ctx->last->next = object;
    } else {
        ctx->first = object;
    }
    ctx->last = object;
    return object + 1;
}

void gb_context_drop(struct ggml_context * ctx, void * payload) {
    struct ggml_object * dropped = (struct ggml_object *) payload - 1;
    struct ggml_object * before  = NULL; // the object in front of it
    for (struct ggml_object * o = ctx->first; o != dropped; o = o->next) {
        before = o;
    }
    const size_t used = dropped->offs - sizeof(*dropped); // before it was made
    // All of it in the open chunk: the memory can be taken again. Chunks have gaps between them, so no others add up.
    if ((uintptr_t) ctx->at - (uintptr_t) dropped == ctx->used - used) {
        ctx->left += ctx->used - used;
        ctx->at = (char *) dropped;
    }
    ctx->used = used;
    ctx->last = before;
    *(before != NULL ? &before->next : &ctx->first) = NULL;
}

// The scratch offset at which `size` bytes fit, or false and reported. Nothing is taken yet.
static bool find_scratch(const struct ggml_context * ctx, size_t size, size_t alignment, size_t * offs) {
    const struct ggml_scratch * scratch = &ctx->scratch;
    const size_t                gap = (alignment - ((uintptr_t) scratch->data + scratch->offs) % alignment) % alignment;
    size_t                      end;
    GB_FAIL_IF(!gb_add_size(scratch->offs, gap, offs) || !gb_add_size(*offs, size, &end) || end > scratch->size, false,
               GGML_STATUS_ALLOC_FAILED, "scratch memory is full: a tensor needs %zu bytes at offset %zu, has %zu bytes in all", size,
               scratch->offs, scratch->size);
    return true;
}

struct ggml_tensor * gb_context_new_tensor(struct ggml_context * ctx, size_t data_size, size_t alignment, bool in_pool) {
    const bool in_scratch = !in_pool && !ctx->no_alloc && ctx->scratch.data != NULL;
    const bool behind     = in_pool || (!ctx->no_alloc && !in_scratch);
    size_t     offs = 0, payload = sizeof(struct ggml_tensor);
    GB_FAIL_IF(behind && !gb_add_size(payload, data_size, &payload), NULL, GGML_STATUS_ALLOC_FAILED,
               "context memory: a tensor of %zu bytes overflows", data_size);
    if (in_scratch && !find_scratch(ctx, data_size, alignment, &offs)) {
        return NULL;
    }
    struct ggml_tensor * tensor = gb_context_alloc(ctx, GGML_OBJECT_TENSOR, payload);
    if (tensor == NULL) {
        return NULL;
    }
    memset(tensor, 0, sizeof(*tensor));
    if (in_scratch) {
        tensor->data      = (char *) ctx->scratch.data + offs;
        ctx->scratch.offs = offs + data_size;
    } else if (behind) {
        tensor->data = tensor + 1;
    }
    return tensor;
}

// ------------------------------------------------------------------------------------------------------------- what is in there

static struct ggml_tensor * first_tensor_from(struct ggml_object * object) {
    while (object != NULL && object->type != GGML_OBJECT_TENSOR) {
        object = object->next;
    }
    return object ? (struct ggml_tensor *) (void *) (object + 1) : NULL;
}

struct ggml_tensor * ggml_get_first_tensor(const struct ggml_context * ctx) {
    GB_CHECK_ARG(ctx, NULL);
    return first_tensor_from(ctx->first);
}

struct ggml_tensor * ggml_get_next_tensor(const struct ggml_context * ctx, struct ggml_tensor * tensor) {
    GB_CHECK_ARG(ctx, NULL);
    GB_CHECK_ARG(tensor, NULL);
    return first_tensor_from(((struct ggml_object *) (void *) tensor - 1)->next);
}

struct ggml_tensor * ggml_get_tensor(struct ggml_context * ctx, const char * name) {
    GB_CHECK_ARG(ctx, NULL);
    GB_CHECK_ARG(name, NULL);
    for (struct ggml_tensor * t = ggml_get_first_tensor(ctx); t != NULL; t = ggml_get_next_tensor(ctx, t)) {
        if (strcmp(t->name, name) == 0) {
            return t;
        }
    }
    return NULL; // not an error: programs ask whether a tensor exists
}

size_t ggml_get_max_tensor_size(const struct ggml_context * ctx) {
    GB_CHECK_ARG(ctx, 0);
    size_t largest = 0;
    for (struct ggml_tensor * t = ggml_get_first_tensor(ctx); t != NULL; t = ggml_get_next_tensor(ctx, t)) {
        largest = GB_MAX(largest, ggml_nbytes(t));
    }
    return largest;
}

size_t ggml_used_mem(const struct ggml_context * ctx) {
    GB_CHECK_ARG(ctx, 0);
    return ctx->used;
}

void * ggml_get_mem_buffer(const struct ggml_context * ctx) {
    GB_CHECK_ARG(ctx, NULL);
    return ctx->mem_buffer;
}

size_t ggml_get_mem_size(const struct ggml_context * ctx) {
    GB_CHECK_ARG(ctx, 0);
    return ctx->mem_size;
}

// --------------------------------------------------------------------------------------------------------- where data comes from

bool ggml_get_no_alloc(struct ggml_context * ctx) {
    GB_CHECK_ARG(ctx, false);
    return ctx->no_alloc;
}

void ggml_set_no_alloc(struct ggml_context * ctx, bool no_alloc) {
    GB_CHECK_ARG(ctx, );
    ctx->no_alloc = no_alloc;
}

size_t ggml_set_scratch(struct ggml_context * ctx, struct ggml_scratch scratch) {
    GB_CHECK_ARG(ctx, 0);
    const size_t offs = ctx->scratch.data ? ctx->scratch.offs : 0;
    ctx->scratch      = scratch;
    return offs;
}

// ------------------------------------------------------------------------------------------------------------------- printing

static const char * object_type_name(enum ggml_object_type type) {
    switch (type) {
        case GGML_OBJECT_TENSOR: return "tensor";
        case GGML_OBJECT_GRAPH: return "graph";
        case GGML_OBJECT_WORK_BUFFER: return "buffer";
    }
    return "unknown";
}

void ggml_print_object(const struct ggml_object * obj) {
    GB_CHECK_ARG(obj, );
    printf("  %-7s at %10zu, %10zu bytes", object_type_name(obj->type), obj->offs, obj->size);
    if (obj->type == GGML_OBJECT_TENSOR) {
        char text[GB_DESCRIBE_SIZE];
        printf(": %s", gb_describe((const struct ggml_tensor *) (const void *) (obj + 1), text));
    }
    putchar('\n');
}

void ggml_print_objects(const struct ggml_context * ctx) {
    GB_CHECK_ARG(ctx, );
    printf("context: %zu of %zu bytes used, %s\n", ctx->used, ctx->mem_size, ctx->chunks ? "grows" : "memory of the caller");
    for (const struct ggml_object * obj = ctx->first; obj != NULL; obj = obj->next) {
        ggml_print_object(obj);
    }
}
