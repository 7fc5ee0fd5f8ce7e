# cmake -D INCLUDE_DIR=... -D SYMBOLS=... -P check_additions.cmake: fails unless the headers of February 2024 declare
# the functions of that time (SYMBOLS lists them) and no others, and include all headers of additions.
cmake_policy(SET CMP0057 NEW) # if(... IN_LIST ...)
include(${CMAKE_CURRENT_LIST_DIR}/../support/declared.cmake)

set(old_headers ggml gguf ggml-alloc ggml-backend ggml-backend-impl)
set(own_headers ggml-cpu ggml-cuda ggml-backend-module ggml-program ggml-today) # programs include them by name
list(TRANSFORM old_headers REPLACE "(.+)" "${INCLUDE_DIR}/\\1.h" OUTPUT_VARIABLE old_files)
declared_in(declared ${old_files})
declared_in(cuda ${INCLUDE_DIR}/ggml-cuda.h) # which has some of that time

file(STRINGS ${SYMBOLS} symbols REGEX "^[a-z]")
set(newer ${declared})
list(REMOVE_ITEM newer ${symbols})
if(newer)
    message(SEND_ERROR "not of February 2024, so they belong into a header of additions: ${newer}")
endif()
list(REMOVE_ITEM symbols ${declared} ${cuda})
if(symbols)
    message(SEND_ERROR "of February 2024, but declared in none of its headers: ${symbols}")
endif()

set(text "")
foreach(file IN LISTS old_files)
    file(READ ${file} one)
    string(APPEND text "${one}")
endforeach()
file(GLOB headers RELATIVE ${INCLUDE_DIR} ${INCLUDE_DIR}/*.h)
foreach(header IN LISTS headers)
    string(REGEX REPLACE "\\.h$" "" stem ${header})
    if(NOT stem IN_LIST old_headers AND NOT stem IN_LIST own_headers AND NOT text MATCHES "#include \"${header}\"")
        message(SEND_ERROR "${header}: no header of February 2024 includes it")
    endif()
endforeach()
