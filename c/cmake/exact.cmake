# GGML_EXACT_OPTIONS and GGML_EXACT_LINK_OPTIONS: results do not depend on CFLAGS.
#
# Compilers and pip take CFLAGS from the environment. Fast math there, and icx's own default, would change what kernels
# compute. So every target gets options that undo such flags. Options of a target come after CFLAGS and after those of
# the build type, and the last one counts. -fno-fast-math does not undo -fassociative-math and the like, so each of them
# has its own opposite here.
set(GGML_EXACT_OPTIONS)
set(GGML_EXACT_LINK_OPTIONS)
if(MSVC)
    set(GGML_EXACT_OPTIONS /fp:precise)
else()
    set(GGML_EXACT_OPTIONS
        -fno-fast-math -fno-unsafe-math-optimizations -fno-associative-math -fno-reciprocal-math
        -fno-finite-math-only -fsigned-zeros -fno-rounding-math -fno-math-errno -ffp-contract=off -fno-short-enums)
    # When a shared library is linked with fast math, code is added that makes the whole process flush denormal numbers
    # to 0.
    set(GGML_EXACT_LINK_OPTIONS -O2 -fno-fast-math -fno-unsafe-math-optimizations)
    string(TOLOWER "${CMAKE_SYSTEM_PROCESSOR}" exact_processor)
    set(exact_x86 FALSE)
    if(exact_processor MATCHES "^(x86_64|amd64)$")
        set(exact_x86 TRUE)
    endif()
    if(CMAKE_C_COMPILER_ID STREQUAL "GNU")
        list(APPEND GGML_EXACT_OPTIONS -ftrapping-math -fno-single-precision-constant)
        if(CMAKE_C_COMPILER_VERSION VERSION_GREATER_EQUAL 10)
            list(APPEND GGML_EXACT_OPTIONS -fno-allow-store-data-races) # of -Ofast
        endif()
        if(exact_x86)
            list(APPEND GGML_EXACT_OPTIONS -mfpmath=sse -mno-recip)
            if(CMAKE_C_COMPILER_VERSION VERSION_GREATER_EQUAL 13)
                list(APPEND GGML_EXACT_LINK_OPTIONS -mno-daz-ftz)
            endif()
        endif()
    else()
        if(CMAKE_C_COMPILER_ID STREQUAL "IntelLLVM")
            list(PREPEND GGML_EXACT_OPTIONS -fp-model=precise)
        endif()
        list(APPEND GGML_EXACT_OPTIONS -fdenormal-fp-math=ieee)
        if(exact_x86)
            list(APPEND GGML_EXACT_OPTIONS -mrecip=none)
        endif()
    endif()
endif()

# nvcc has no option that undoes --use_fast_math.
if(GGML_CUDA)
    set(exact_cuda_flags "${CMAKE_CUDA_FLAGS} $ENV{CUDAFLAGS} $ENV{NVCC_PREPEND_FLAGS} $ENV{NVCC_APPEND_FLAGS}")
    foreach(config DEBUG RELEASE RELWITHDEBINFO MINSIZEREL)
        string(APPEND exact_cuda_flags " ${CMAKE_CUDA_FLAGS_${config}}")
    endforeach()
    if(exact_cuda_flags MATCHES "(-use_fast_math|-ftz[= ]true|-prec-div[= ]false|-prec-sqrt[= ]false)")
        message(FATAL_ERROR "The flags for nvcc have ${CMAKE_MATCH_1}: kernels would compute wrong numbers. "
            "Take it out of CUDAFLAGS, CMAKE_CUDA_FLAGS and NVCC_APPEND_FLAGS.")
    endif()
endif()
