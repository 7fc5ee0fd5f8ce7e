# cmake -D NM=... -D LIBRARY=... -D INCLUDE_DIR=... -P check_exports.cmake: fails unless the library exports exactly the
# functions that the public headers declare with GGML_API.

include(${CMAKE_CURRENT_LIST_DIR}/../support/declared.cmake)
declared_functions(declared ${INCLUDE_DIR})

execute_process(COMMAND ${NM} -D --defined-only ${LIBRARY} OUTPUT_VARIABLE lines RESULT_VARIABLE failed)
if(failed)
    message(FATAL_ERROR "${NM} ${LIBRARY} failed: ${failed}")
endif()
string(REGEX MATCHALL "[^\n]+" lines "${lines}")
set(exported "")
foreach(line IN LISTS lines)
    if(line MATCHES " [A-Za-z] ([^_ @][^ @]*)") # names with _ in front are the compiler's and the linker's
        list(APPEND exported ${CMAKE_MATCH_1})
    endif()
endforeach()

list(LENGTH declared n_declared)
list(LENGTH exported n_exported)
message(STATUS "${n_declared} declared, ${n_exported} exported")
set(missing ${declared})
list(REMOVE_ITEM missing ${exported})
list(REMOVE_ITEM exported ${declared})
if(missing)
    message(SEND_ERROR "declared but not exported: ${missing}")
endif()
if(exported)
    message(SEND_ERROR "exported but not declared: ${exported}")
endif()
