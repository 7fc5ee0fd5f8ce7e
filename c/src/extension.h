// extension.h - the only header of c/src that the Python extension (python/core, python/ffi_*.h)
// includes.
//
// Besides the public headers, the extension uses only the names listed here, each list behind its
// header. Other names that begin with gb_ or GB_ may change without a look at python/. A test of
// the package compares the lists with the names that the extension uses, and checks its include
// lines. The extension also reads three fields of buffers: `binding`, `arena` and `buft`.
#ifndef GB_EXTENSION_H
#define GB_EXTENSION_H

// Errors: status, message and values of each thread's last failure. The extension holds the log
// back while it holds its lock.
//   GB_TRY GB_FAIL_IF GB_FAIL_IF_RETURNING GB_ERROR_SIZE gb_fail gb_fail_quietly gb_last_message gb_last_failure
//   gb_hold_log gb_fail_count gb_status_since gb_forget_failures_since gb_failure gb_failure_save gb_failure_restore
//   GB_QUOTE gb_fault GB_FAULT_NONE gb_fault_name gb_fault_message
#include "base/status.h"

// Memory, growing arrays, maps by address, small arithmetic.
//   gb_malloc gb_calloc gb_free GB_NEW GB_MIN GB_MAX
#include "base/mem.h"
//   GB_VEC gb_vec_push gb_vec_reserve gb_vec_free
#include "base/vec.h"
//   gb_ptrmap gb_ptrmap_get gb_ptrmap_set gb_ptrmap_free GB_PTRMAP_ABSENT
#include "base/hash.h"

// Threads: locks, waits that signal handlers interrupt, forks.
//   gb_mutex GB_MUTEX_INIT gb_mutex_lock gb_mutex_unlock gb_cond gb_cond_init gb_cond_broadcast gb_cond_wait_polled
//   gb_once GB_ONCE_INIT gb_call_once gb_fork_generation gb_thread_number gb_sleep_us GB_READ_RELAXED GB_WRITE_RELAXED
#include "base/thread.h"
//   gb_time_ns gb_addresses_reserve gb_addresses_release
#include "base/env.h"
// The run that the calling thread works for, and its poll for signals.
//   gb_run gb_set_run gb_poll gb_get_poll gb_set_poll gb_fill
#include "base/current.h"

// Files: written whole before they replace others, and mapped files, which may shrink.
//   gb_file_writer gb_file_writer_open gb_file_writer_write gb_file_writer_commit gb_file_writer_abandon
#include "base/file.h"
//   gb_mapped gb_mapped_any gb_mapped_watch gb_mapped_forget gb_mapped_enter gb_mapped_leave gb_mapped_check_at
//   gb_mapped_place
#include "base/mapped.h"

// Tensors: their memory, their placement, and marks of the extension on them.
//   gb_root gb_tensor_put gb_context_has gb_op_computes gb_op_inplace_sources gb_to_float_of gb_trust_tensors
//   gb_graph_dump_dot
#include "tensor/tensor.h"
//   gb_tensor_ndim gb_tensor_set_ndim gb_tensor_content gb_tensor_set_content gb_tensor_is_read_once
//   gb_tensor_has_flag gb_tensor_set_flag gb_tensor_clear_flag GB_TENSOR_CONSTANT GB_TENSOR_LOST
#include "tensor/marks.h"
// Nodes as messages between processes.
//   gb_nodes gb_nodes_bytes gb_nodes_place gb_nodes_memory gb_nodes_write gb_nodes_read gb_nodes_bind gb_nodes_free
#include "tensor/nodes.h"

// Buffers, held while arrays refer to their memory.
//   gb_tensor_buffer gb_buffer_hold gb_buffer_unhold gb_buffer_changed gb_buffer_version gb_buffer_is_retired
//   gb_multi_buffer_part gb_buffer_is_host gb_view_bind gb_tensor_write gb_tensor_scatter
//   gb_backend_algorithm
#include "backend/backend.h"
// Profiles: what a thread records.
//   gb_profile_scope gb_profile_enter gb_profile_leave gb_profile_fail_run
#include "backend/profile.h"

// Which of a scheduler's results are still in memory.
//   GB_SCHED_PLANS_MAX gb_sched_leaf_is_bound gb_sched_result_is_alive gb_sched_has_placed gb_content_state
//   GB_CONTENT_GONE GB_CONTENT_STAYS GB_CONTENT_NOT_COMPUTED GB_CONTENT_OVERWRITTEN GB_CONTENT_NOT_STORED
//   gb_sched_hold gb_sched_hold_for_readers gb_sched_buffer_at gb_sched_n_plans_made gb_sched_n_plans_bound
//   gb_sched_device_name
#include "sched/results.h"

// Model files with strings of any bytes, tensors of any name and type.
//   gb_gguf_str gb_gguf_strs gb_gguf_set_str gb_gguf_set_strs gb_gguf_copy_pair gb_gguf_add_named gb_gguf_copy_named
//   gb_gguf_nested gb_gguf_set_nested gb_gguf_layout
#include "gguf/exact.h"

// The limits of this processor, for `ggml-backend bench`.
//   gb_cpu_limit gb_cpu_measure_limit
#include "cpu/limits.h"
// The algorithm that computes a product, for `ggml-backend bench products --explain`.
//   gb_cpu_product_algorithm
#include "cpu/cpu.h"

#endif // GB_EXTENSION_H
