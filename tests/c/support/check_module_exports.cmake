# cmake -D NM=... -D LIBRARY=... -P check_module_exports.cmake: fails unless the module exports its entry point and
# nothing else.
execute_process(COMMAND ${NM} -D --defined-only ${LIBRARY} OUTPUT_VARIABLE lines RESULT_VARIABLE failed)
if(failed)
    message(FATAL_ERROR "${NM} ${LIBRARY} failed: ${failed}")
endif()
# Names with _ in front are the compiler's and the linker's.
string(REGEX MATCHALL " [A-Za-z] [^_ @\n][^ @\n]*" exported "${lines}")
if(NOT exported STREQUAL " T ggml_backend_module_init")
    message(FATAL_ERROR "the module exports:${exported}")
endif()
