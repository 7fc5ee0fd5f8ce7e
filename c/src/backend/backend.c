// backend.c - devices: queued access to tensors, computing, and copies between tensors.
//
// If a backend has no hook for queued work, the functions wait for its queue and then make the
// synchronous call. So the order of calls is the order of effects in both cases. A backend without
// graph plans gets a plain plan: a copy of the node list, run through graph_compute.
#include "backend/backend.h"

#include <stdio.h>
#include <string.h>

#include "backend/profile.h"
#include "base/current.h"
#include "base/env.h"
#include "base/mapped.h"
#include "base/mem.h"
#include "base/thread.h"
#include "base/vec.h"

// Bytes of the host buffer for copies between two devices that cannot copy directly.
#define STAGING_SIZE ((size_t) 1 << 20)

// Messages use this, so it never fails: "NULL" without a backend or a hook.
const char * ggml_backend_name(ggml_backend_t backend) {
    return backend && backend->iface.get_name ? backend->iface.get_name(backend) : "NULL";
}

// ------------------------------------------------------------------------------------------------------------ watchers

static struct gb_backend_watch * watchers; // all of the process; guarded by GB_MUTEX_WATCHERS

void gb_backend_watch(struct gb_backend_watch * watch, ggml_backend_t backend) {
    gb_process_lock(GB_MUTEX_WATCHERS);
    watch->backend = backend;
    watch->next = watchers;
    watchers = watch;
    gb_process_unlock(GB_MUTEX_WATCHERS);
}

// Removes a watch from the list: the given one, or the first one of a backend if `which` is NULL.
// NULL if it is not in the list.
static struct gb_backend_watch * take_watcher(const struct gb_backend_watch * which, ggml_backend_t of) {
    struct gb_backend_watch * found = NULL;
    gb_process_lock(GB_MUTEX_WATCHERS);
    for (struct gb_backend_watch ** at = &watchers; *at && found == NULL;) {
        if (which ? *at == which : (*at)->backend == of) {
            found = *at;
            *at = found->next;
        } else {
            at = &(*at)->next;
        }
    }
    gb_process_unlock(GB_MUTEX_WATCHERS);
    return found;
}

// Does nothing if the backend was freed: the watch then has no backend.
void gb_backend_unwatch(struct gb_backend_watch * watch) {
    if (watch->backend) {
        take_watcher(watch, NULL);
        watch->backend = NULL;
    }
}

// Takes each watch out of the list before its call, so that `on_free` may watch and unwatch.
void ggml_backend_free(ggml_backend_t backend) {
    if (backend == NULL || backend->iface.free == NULL) {
        return;
    }
    for (struct gb_backend_watch * watch; (watch = take_watcher(NULL, backend)) != NULL;) {
        watch->on_free(watch);
        watch->backend = NULL;
    }
    backend->iface.free(backend);
}

// ------------------------------------------------------------------------------------- through the default buffer type

// A backend without a type of its own cannot hold tensors.
ggml_backend_buffer_type_t ggml_backend_get_default_buffer_type(ggml_backend_t backend) {
    GB_CHECK_ARG_RETURNING(backend, NULL);
    GB_FAIL_IF_RETURNING(backend->iface.get_default_buffer_type == NULL, NULL, GGML_STATUS_UNSUPPORTED,
        "%s: backend %s has no buffer type", __func__, ggml_backend_name(backend));
    return backend->iface.get_default_buffer_type(backend);
}

ggml_backend_buffer_t ggml_backend_alloc_buffer(ggml_backend_t backend, size_t size) {
    const ggml_backend_buffer_type_t buft = ggml_backend_get_default_buffer_type(backend);
    return buft ? ggml_backend_buft_alloc_buffer(buft, size) : NULL;
}

size_t ggml_backend_get_alignment(ggml_backend_t backend) {
    const ggml_backend_buffer_type_t buft = ggml_backend_get_default_buffer_type(backend);
    return buft ? ggml_backend_buft_get_alignment(buft) : 0;
}

size_t ggml_backend_get_max_size(ggml_backend_t backend) {
    const ggml_backend_buffer_type_t buft = ggml_backend_get_default_buffer_type(backend);
    return buft ? ggml_backend_buft_get_max_size(buft) : 0;
}

// ------------------------------------------------------------------------------------------------ queued tensor access

// True if the backend itself can reach the tensor's bytes; its queue may then access them.
static bool reaches(ggml_backend_t backend, const struct ggml_tensor * t) {
    const ggml_backend_buffer_t buffer = gb_tensor_buffer(t);
    return buffer != NULL && ggml_backend_buft_supports_backend(buffer->buft, backend);
}

// Checks the arguments of a queued access.
static enum ggml_status check_async(const char * func, ggml_backend_t backend, const struct ggml_tensor * tensor,
    const void * data, size_t offset, size_t size) {
    GB_FAIL_IF(backend == NULL, GGML_STATUS_INVALID_ARGUMENT, "%s: argument 'backend' is NULL", func);
    GB_FAIL_IF(tensor == NULL, GGML_STATUS_INVALID_ARGUMENT, "%s: argument 'tensor' is NULL", func);
    return size == 0 ? GGML_STATUS_SUCCESS : gb_tensor_check_access(func, tensor, data, offset, size);
}

// The version of the buffer changes when the write is queued, because no one may read the old bytes
// after that.
enum ggml_status ggml_backend_tensor_set_async(ggml_backend_t backend, struct ggml_tensor * tensor, const void * data,
    size_t offset, size_t size) {
    GB_TRY(check_async(__func__, backend, tensor, data, offset, size));
    if (size == 0) {
        return GGML_STATUS_SUCCESS;
    }
    if (backend->iface.set_tensor_async && reaches(backend, tensor)) {
        const uint64_t before = gb_fail_count();
        gb_buffer_changed(gb_tensor_buffer(tensor));
        gb_mapped_enter();  // the hook may read `data` now, which may be a mapped file
        backend->iface.set_tensor_async(backend, tensor, data, offset, size);
        gb_mapped_leave();
        GB_TRY(gb_status_since(before));
        return gb_mapped_check_at(__func__, data);
    }
    GB_TRY(ggml_backend_synchronize(backend));
    return ggml_backend_tensor_set(tensor, data, offset, size);
}

// The caller must not read `data` before it has synchronized.
enum ggml_status ggml_backend_tensor_get_async(ggml_backend_t backend, const struct ggml_tensor * tensor, void * data,
    size_t offset, size_t size) {
    GB_TRY(check_async(__func__, backend, tensor, data, offset, size));
    if (size == 0) {
        return GGML_STATUS_SUCCESS;
    }
    if (backend->iface.get_tensor_async && reaches(backend, tensor)) {
        const uint64_t before = gb_fail_count();
        gb_mapped_enter();
        backend->iface.get_tensor_async(backend, tensor, data, offset, size);
        gb_mapped_leave();
        GB_TRY(gb_status_since(before));
        return gb_mapped_check_at(__func__, tensor->data);
    }
    GB_TRY(ggml_backend_synchronize(backend));
    return ggml_backend_tensor_get(tensor, data, offset, size);
}

// Reports failures of queued work. A backend without the hook has nothing queued.
enum ggml_status ggml_backend_synchronize(ggml_backend_t backend) {
    GB_CHECK_ARG(backend);
    const uint64_t before = gb_fail_count();
    if (backend->iface.synchronize) {
        backend->iface.synchronize(backend);
    }
    return gb_status_since(before);
}

// ----------------------------------------------------------------------------------------------------------- computing

// Checks that the backend can compute and that the graph is well-formed.
static enum ggml_status check_graph(const char * func, ggml_backend_t backend, const struct ggml_cgraph * cgraph) {
    GB_FAIL_IF(backend == NULL, GGML_STATUS_INVALID_ARGUMENT, "%s: argument 'backend' is NULL", func);
    GB_FAIL_IF(backend->iface.graph_compute == NULL, GGML_STATUS_UNSUPPORTED, "%s: backend %s cannot compute graphs",
        func, ggml_backend_name(backend));
    return gb_graph_check(cgraph, "cgraph", func);
}

// Gives all buffers with results of the graph one new version. Views have no results of their own.
static void mark_written(const struct ggml_cgraph * cgraph) {
    const uint64_t version = gb_new_version();
    for (int i = 0; i < cgraph->n_nodes; i++) {
        const struct ggml_tensor * node = cgraph->nodes[i];
        const ggml_backend_buffer_t buffer = gb_op_computes(node->op) ? gb_tensor_buffer(node) : NULL;
        if (buffer && gb_buffer_version(buffer) != version) {
            gb_buffer_set_version(buffer, version);
        }
    }
}

const char * gb_backend_algorithm(ggml_backend_t backend, const struct ggml_tensor * node, int i, const char ** why) {
    return backend->iface.algorithm != NULL ? backend->iface.algorithm(backend, node, i, why) : NULL;
}

// The algorithm that computes the node. NULL if it has no name.
static const char * algorithm_of(ggml_backend_t backend, const struct ggml_tensor * node) {
    const char *name = NULL, *next, *why = NULL;
    for (int i = 0; (next = gb_backend_algorithm(backend, node, i, &why)) != NULL; i++) {
        name = next;
    }
    return name;
}

void gb_backend_name_algorithms(ggml_backend_t backend, struct ggml_tensor * const * nodes, int n,
    char (*text)[GB_ALGORITHMS_SIZE]) {
    enum { MOST = 16 };
    const char * names[MOST];
    int n_names = 0;
    for (int i = 0; i < n && n_names < MOST; i++) {
        const char * name = algorithm_of(backend, nodes[i]);
        int k = 0;
        while (name != NULL && k < n_names && strcmp(names[k], name) != 0) {
            k++;
        }
        if (name != NULL && k == n_names) {
            names[n_names++] = name;
        }
    }
    if (n_names > 1) {
        snprintf(*text, sizeof(*text), "%s and %d more", names[0], n_names - 1);
    } else {
        snprintf(*text, sizeof(*text), "%s", n_names > 0 ? names[0] : "");
    }
}

// Computes the graph as a run of the profile that the thread uses. If the backend does not record
// steps, the whole graph is one record.
static bool compute_profiled(ggml_backend_t backend, struct ggml_cgraph * cgraph) {
    const bool begun = gb_profile_begin_run();
    const char * device = begun ? gb_profile_set_device(ggml_backend_name(backend)) : NULL;
    const uint64_t before = gb_profile_n_added(), failures = gb_fail_count();
    const int64_t start = gb_time_ns();
    bool ok = backend->iface.graph_compute(backend, cgraph);
    if (ok && begun && gb_profile_n_added() == before) {
        ok = ggml_backend_synchronize(backend) == GGML_STATUS_SUCCESS;
        if (ok && gb_fail_count() == failures) {
            char algorithms[GB_ALGORITHMS_SIZE];
            gb_backend_name_algorithms(backend, cgraph->nodes, cgraph->n_nodes, &algorithms);
            gb_profile_add(&(struct gb_profile_note){ .nodes = cgraph->nodes,
                .n_nodes = cgraph->n_nodes,
                .apart = true,
                .fusion = "split",
                .algorithm = algorithms,
                .start_ns = start,
                .end_ns = gb_time_ns(),
                .n_threads = 1,
                .n_tasks = 1 });
        }
    }
    if (begun) {
        gb_profile_set_device(device);
    }
    gb_profile_end_run(begun, ok);
    return ok;
}

// Calls graph_compute. A failure gets a message even if the hook reports none. A hook that returns
// true has computed the graph, even if it reports a failure.
static enum ggml_status run_graph(const char * func, ggml_backend_t backend, struct ggml_cgraph * cgraph) {
    const uint64_t before = gb_fail_count();
    mark_written(cgraph);
    const bool ok =
        gb_profile_is_on() ? compute_profiled(backend, cgraph) : backend->iface.graph_compute(backend, cgraph);
    if (!ok && gb_fail_count() == before) {
        gb_fail(GGML_STATUS_FAILED, "%s: backend %s could not compute the graph", func, ggml_backend_name(backend));
    }
    const enum ggml_status status = gb_status_since(before);
    return ok ? GGML_STATUS_SUCCESS : status == GGML_STATUS_SUCCESS ? GGML_STATUS_FAILED : status;
}

bool ggml_backend_graph_compute(ggml_backend_t backend, struct ggml_cgraph * cgraph) {
    return check_graph(__func__, backend, cgraph) == GGML_STATUS_SUCCESS &&
           run_graph(__func__, backend, cgraph) == GGML_STATUS_SUCCESS;
}

// A backend that fuses nodes need not write a result that one node reads once, if the result is in
// an arena. Later tensors overwrite the arena anyway. The same holds for the copy of such a tensor
// in a snapshot.
bool ggml_backend_may_leave_out(const struct ggml_tensor * node) {
    const struct ggml_tensor * root = node ? gb_root(node) : NULL;
    return node &&
           (gb_tensor_is_surely_read_once(node) ||
               (gb_tensor_is_read_once(node) && gb_tensor_is_read_once(root) && root->buffer && root->buffer->arena));
}

// The handle for callers. It wraps the backend's own plan. For a backend without plans, it wraps
// the graph with a copy of its node list.
struct plan {
    ggml_backend_t backend;  // the maker of the plan; only compared, to refuse a stale handle
    bool plain;
    ggml_backend_graph_plan_t inner;       // owned; unless plain
    GB_VEC(ggml_backend_buffer_t) written; // buffers of the results
    struct ggml_cgraph graph;              // only of a plain plan
    struct ggml_tensor * nodes[];          // only of a plain plan; borrowed
};

// Lists the buffers of the results of a plan that is not plain. Such a plan may outlive the graph's
// tensors, and must mark the buffers at each computation. The new version only serves to list each
// buffer once.
static bool list_written(struct plan * plan, const struct ggml_cgraph * cgraph) {
    const uint64_t version = gb_new_version();
    for (int i = 0; i < cgraph->n_nodes; i++) {
        const struct ggml_tensor * node = cgraph->nodes[i];
        const ggml_backend_buffer_t buffer = gb_op_computes(node->op) ? gb_tensor_buffer(node) : NULL;
        if (buffer && gb_buffer_version(buffer) != version) { // not listed yet
            gb_buffer_set_version(buffer, version);
            if (!gb_vec_push(&plan->written, buffer)) {
                return false;
            }
        }
    }
    return true;
}

static void free_plan(struct plan * plan) {
    gb_vec_free(&plan->written);
    gb_free(plan);
}

// A plain plan has space for the node list behind the struct, and copies it.
static struct plan * plan_new(ggml_backend_t backend, const struct ggml_cgraph * cgraph, bool plain) {
    const size_t bytes = plain ? (size_t) cgraph->n_nodes * sizeof(struct ggml_tensor *) : 0;
    struct plan * plan = gb_calloc(1, sizeof(*plan) + bytes);
    if (plan) {
        plan->backend = backend;
        plan->plain = plain;
        plan->graph.n_nodes = cgraph->n_nodes;
        plan->graph.nodes = plan->nodes;
        plan->graph.order = cgraph->order;
        if (bytes > 0) {
            memcpy(plan->nodes, cgraph->nodes, bytes);
        }
    }
    return plan;
}

// Refuses a plan of another backend: handles are untyped pointers, so the hook could not notice.
static enum ggml_status check_plan(const char * func, ggml_backend_t backend, const struct plan * plan) {
    GB_FAIL_IF(backend == NULL, GGML_STATUS_INVALID_ARGUMENT, "%s: argument 'backend' is NULL", func);
    GB_FAIL_IF(plan == NULL, GGML_STATUS_INVALID_ARGUMENT, "%s: argument 'plan' is NULL", func);
    GB_FAIL_IF(plan->backend != backend, GGML_STATUS_INVALID_ARGUMENT,
        "%s: argument 'plan' is not a plan of this backend, %s", func, ggml_backend_name(backend));
    return GGML_STATUS_SUCCESS;
}

static bool has_plans(ggml_backend_t backend) {
    return backend->iface.graph_plan_create && backend->iface.graph_plan_free && backend->iface.graph_plan_compute;
}

// Wraps the backend's own plan, so that other backends can refuse it.
ggml_backend_graph_plan_t ggml_backend_graph_plan_create(ggml_backend_t backend, struct ggml_cgraph * cgraph) {
    if (check_graph(__func__, backend, cgraph) != GGML_STATUS_SUCCESS) {
        return NULL;
    }
    const bool plain = !has_plans(backend);
    struct plan * plan = plan_new(backend, cgraph, plain);
    if (plan == NULL || plain) {
        return plan;
    }
    const uint64_t before = gb_fail_count();
    plan->inner = list_written(plan, cgraph) ? backend->iface.graph_plan_create(backend, cgraph) : NULL;
    if (plan->inner != NULL) {
        return plan;
    }
    if (gb_fail_count() == before) {
        gb_fail(GGML_STATUS_FAILED, "%s: backend %s could not prepare the graph", __func__, ggml_backend_name(backend));
    }
    free_plan(plan);
    return NULL;
}

// Refuses a handle of another backend and does not free it.
void ggml_backend_graph_plan_free(ggml_backend_t backend, ggml_backend_graph_plan_t plan) {
    struct plan * p = plan;
    if (p == NULL || check_plan(__func__, backend, p) != GGML_STATUS_SUCCESS) {
        return;
    }
    if (!p->plain) {
        backend->iface.graph_plan_free(backend, p->inner);
    }
    free_plan(p);
}

// Checks a plain plan at each computation, because the caller may have changed its tensors.
enum ggml_status ggml_backend_graph_plan_compute(ggml_backend_t backend, ggml_backend_graph_plan_t plan) {
    struct plan * p = plan;
    GB_TRY(check_plan(__func__, backend, p));
    if (p->plain) {
        GB_TRY(check_graph(__func__, backend, &p->graph));
        return run_graph(__func__, backend, &p->graph);
    }
    const uint64_t before = gb_fail_count(), version = gb_new_version();
    for (size_t i = 0; i < p->written.n; i++) {
        gb_buffer_set_version(p->written.data[i], version);
    }
    backend->iface.graph_plan_compute(backend, p->inner);
    return gb_status_since(before);
}

bool ggml_backend_supports_op(ggml_backend_t backend, const struct ggml_tensor * op) {
    GB_CHECK_ARG_RETURNING(backend, false);
    GB_CHECK_ARG_RETURNING(op, false);
    return backend->iface.supports_op && backend->iface.supports_op(backend, op);
}

// A static text. NULL if the backend supports the node. Reports nothing, because a negative answer
// is not a failure.
const char * ggml_backend_unsupported_reason(ggml_backend_t backend, const struct ggml_tensor * op) {
    if (backend == NULL || op == NULL) {
        return backend ? "the op is NULL" : "the backend is NULL";
    }
    if (ggml_backend_supports_op(backend, op)) {
        return NULL;
    }
    const char * reason = backend->iface.unsupported_reason ? backend->iface.unsupported_reason(backend, op) : NULL;
    return reason ? reason : "the backend gives no reason";
}

// -------------------------------------------------------------------------------------------------------------- copies

// Checks that both tensors have memory and the same type, shape and strides. *nothing is set if
// there is nothing to copy: both are the same tensor, or they have no elements.
static enum ggml_status check_copy(const char * func, const struct ggml_tensor * src, const struct ggml_tensor * dst,
    bool * nothing) {
    char a[GB_DESCRIBE_SIZE], b[GB_DESCRIBE_SIZE];
    *nothing = true;
    if (src != NULL && src == dst) {
        return GGML_STATUS_SUCCESS;
    }
    GB_FAIL_IF(src == NULL, GGML_STATUS_INVALID_ARGUMENT, "%s: argument 'src' is NULL", func);
    GB_FAIL_IF(dst == NULL, GGML_STATUS_INVALID_ARGUMENT, "%s: argument 'dst' is NULL", func);
    GB_FAIL_IF(!gb_are_same_layout(src, dst), GGML_STATUS_INVALID_ARGUMENT,
        "%s: type, shape and strides must be the same: src %s, dst %s", func, gb_describe(src, a), gb_describe(dst, b));
    GB_TRY(gb_tensor_check_placed(func, src));
    GB_TRY(gb_tensor_check_placed(func, dst));
    *nothing = ggml_nbytes(dst) == 0;
    return GGML_STATUS_SUCCESS;
}

// Copies the bytes [offset, offset + size) of both tensors through host memory, staging_size bytes at a time.
static enum ggml_status copy_staged(const struct ggml_tensor * src, struct ggml_tensor * dst, size_t offset,
    size_t size, char * staging, size_t staging_size) {
    for (size_t done = 0; done < size;) {
        const size_t n = GB_MIN(staging_size, size - done);
        GB_TRY(ggml_backend_tensor_get(src, staging, offset + done, n));
        GB_TRY(ggml_backend_tensor_set(dst, staging, offset + done, n));
        done += n;
    }
    return GGML_STATUS_SUCCESS;
}

// Copies bytes without gaps, directly if one side is on the host.
static enum ggml_status copy_run(const struct ggml_tensor * src, struct ggml_tensor * dst, size_t offset, size_t size,
    char * staging, size_t staging_size) {
    if (gb_tensor_is_host(src)) {
        return ggml_backend_tensor_set(dst, (const char *) src->data + offset, offset, size);
    }
    if (gb_tensor_is_host(dst)) {
        return ggml_backend_tensor_get(src, (char *) dst->data + offset, offset, size);
    }
    return copy_staged(src, dst, offset, size, staging, staging_size);
}

// Copies a view row by row, or element by element if rows have gaps. The bytes in its gaps belong
// to other tensors.
static enum ggml_status copy_runs(const struct ggml_tensor * src, struct ggml_tensor * dst, char * staging,
    size_t staging_size) {
    const size_t unit = ggml_type_size(dst->type);
    const int64_t n_units = dst->ne[0] / ggml_blck_size(dst->type);
    const bool dense = dst->nb[0] == unit || n_units == 1;
    const size_t run = dense ? (size_t) n_units * unit : unit;
    const int64_t n_runs = dense ? 1 : n_units;
    for (int64_t r = 0; r < ggml_nrows(dst); r++) {
        if (r % 256 == 255) {
            GB_TRY(gb_check_poll());
        }
        const int64_t i1 = r % dst->ne[1], i2 = r / dst->ne[1] % dst->ne[2], i3 = r / dst->ne[1] / dst->ne[2];
        const size_t row = (size_t) i1 * dst->nb[1] + (size_t) i2 * dst->nb[2] + (size_t) i3 * dst->nb[3];
        for (int64_t i0 = 0; i0 < n_runs; i0++) {
            GB_TRY(copy_run(src, dst, row + (size_t) i0 * dst->nb[0], run, staging, staging_size));
        }
    }
    return GGML_STATUS_SUCCESS;
}

// Copies if a tensor is in host memory, if no hook of the buffers can copy, or if a hook would write
// into gaps.
static enum ggml_status copy_through_host(const struct ggml_tensor * src, struct ggml_tensor * dst, bool gaps) {
    const size_t nbytes = ggml_nbytes(dst);
    const bool host = gb_tensor_is_host(src) || gb_tensor_is_host(dst);
    const size_t staging_size = GB_MIN(nbytes, STAGING_SIZE);
    char * staging = host ? NULL : gb_malloc(staging_size);
    if (!host && staging == NULL) {
        return GGML_STATUS_ALLOC_FAILED;
    }
    const enum ggml_status status =
        gaps ? copy_runs(src, dst, staging, staging_size) : copy_run(src, dst, 0, nbytes, staging, staging_size);
    gb_free(staging);
    return status;
}

// Between devices this tries the buffers' hooks first. Copies into a view with gaps by rows.
enum ggml_status ggml_backend_tensor_copy(struct ggml_tensor * src, struct ggml_tensor * dst) {
    bool nothing;
    GB_TRY(check_copy(__func__, src, dst, &nothing));
    if (nothing) {
        return GGML_STATUS_SUCCESS;
    }
    const bool gaps = dst->view_src != NULL && gb_tensor_has_gaps(dst);
    if (!gaps && !gb_tensor_is_host(src) && !gb_tensor_is_host(dst)) {
        const uint64_t before = gb_fail_count();
        const bool copied = ggml_backend_buffer_copy_tensor(src, dst);
        GB_TRY(gb_status_since(before));  // an error only if a hook failed, not if no hook can copy
        if (copied) {
            return gb_mapped_check_at(__func__, src->data);
        }
    }
    return copy_through_host(src, dst, gaps);
}

// Orders the copy after the queue of `backend` only. If other backends have queued work on src, the
// caller waits for it.
enum ggml_status ggml_backend_tensor_copy_async(ggml_backend_t backend, struct ggml_tensor * src,
    struct ggml_tensor * dst) {
    GB_CHECK_ARG(backend);
    bool nothing;
    GB_TRY(check_copy(__func__, src, dst, &nothing));
    if (nothing) {
        return GGML_STATUS_SUCCESS;
    }
    const bool gaps = dst->view_src != NULL && gb_tensor_has_gaps(dst);
    if (!gaps && backend->iface.cpy_tensor_async && reaches(backend, src) && reaches(backend, dst)) {
        const uint64_t before = gb_fail_count();
        gb_buffer_changed(gb_tensor_buffer(dst));
        gb_mapped_enter();
        const bool queued = backend->iface.cpy_tensor_async(backend, src, dst);
        gb_mapped_leave();
        GB_TRY(gb_status_since(before));
        if (queued) {
            return GGML_STATUS_SUCCESS;
        }
    }
    GB_TRY(ggml_backend_synchronize(backend));
    return ggml_backend_tensor_copy(src, dst);
}
