# The CUDA backend compiled by hipcc for devices of AMD, with GGML_HIP=ON: an experiment. It compiles and links, and has
# never run on a device (docs/CUDA.md, ROCm). The module is not installed, and nothing loads it but GGML_CUDA_MODULE.
#   ggml_backend_hip   the module; exports its entry point alone
# CMake's own language HIP wants packages where distributions do not put them, so hipcc is called by name.
find_program(GGML_HIPCC hipcc REQUIRED)
set(CMAKE_HIP_ARCHITECTURES gfx1030 CACHE STRING "Devices of AMD to compile for, with wavefronts of 32 lanes")
# HIP_PLATFORM: hipcc takes CUDA's where that is installed.
execute_process(COMMAND ${CMAKE_COMMAND} -E env HIP_PLATFORM=amd ${GGML_HIPCC} --version
    OUTPUT_VARIABLE hip_version RESULT_VARIABLE failed ERROR_QUIET)
string(REGEX MATCH "HIP version: ([0-9.]+)" hip_version "${hip_version}")
if(failed OR NOT hip_version OR CMAKE_MATCH_1 VERSION_LESS 5.2)
    message(FATAL_ERROR "GGML_HIP needs hipcc 5.2 or newer: ${GGML_HIPCC} says '${hip_version}'")
endif()
find_library(GGML_HIP_RUNTIME amdhip64 REQUIRED PATHS /opt/rocm/lib)
enable_language(CXX) # the linker
message(STATUS "GGML_HIP: compiled by ${GGML_HIPCC}, ${hip_version}; never run on a device")

# What stays out, and why; src/cuda/hip/absent.cu answers for it.
set(hip_left_out
    ops/product_tiles.cu     # mma.sync: the fragments of kernels/gemm.cuh are NVIDIA's; MFMA and WMMA have others
    ops/product_few.cu       # the same: kernels/few_rows.cuh
    ops/product_hopper.cu    # wgmma, tensor maps and barriers of 9.0
    ops/product_packed_hopper.cu # the same
    ops/attention_hopper.cu  # the same; in ops/attention.cu GB_NO_MMA leaves out gb_attention_halves, of mma.sync
    tensor_map.cu            # HIP has no tensor maps
    cuda_blas.cu)            # would give memory of AMD's devices to cuBLAS
file(GLOB hip_sources RELATIVE ${CMAKE_CURRENT_SOURCE_DIR}/src/cuda CONFIGURE_DEPENDS
    src/cuda/*.cu src/cuda/ops/*.cu src/cuda/hip/*.cu)
list(REMOVE_ITEM hip_sources ${hip_left_out})

# -Wpass-failed is off: loops that nvcc unrolls, hipcc may not.
set(hip_flags -O3 -fPIC -std=c++17 -fvisibility=hidden -DGGML_BACKEND_MODULE_BUILD
    -Wall -Wno-unused-function -Wno-pass-failed
    -I${CMAKE_CURRENT_SOURCE_DIR}/src/cuda/hip -I${CMAKE_CURRENT_SOURCE_DIR}/src -I${CMAKE_CURRENT_SOURCE_DIR}/src/cuda
    -I${CMAKE_CURRENT_SOURCE_DIR}/include)
if(GGML_BACKEND_WERROR)
    list(APPEND hip_flags -Werror)
endif()
foreach(architecture IN LISTS CMAKE_HIP_ARCHITECTURES)
    list(APPEND hip_flags --offload-arch=${architecture})
endforeach()
set(hip_objects)
foreach(source IN LISTS hip_sources)
    set(from ${CMAKE_CURRENT_SOURCE_DIR}/src/cuda/${source})
    set(object ${CMAKE_CURRENT_BINARY_DIR}/hip/${source}.o)
    get_filename_component(folder ${object} DIRECTORY)
    file(MAKE_DIRECTORY ${folder})
    add_custom_command(OUTPUT ${object}
        COMMAND ${CMAKE_COMMAND} -E env HIP_PLATFORM=amd
            ${GGML_HIPCC} ${hip_flags} -MD -MF ${object}.d -x hip -c ${from} -o ${object}
        DEPENDS ${from} DEPFILE ${object}.d COMMENT "Compiling ${source} by hipcc" VERBATIM)
    list(APPEND hip_objects ${object})
endforeach()

add_library(ggml_backend_hip MODULE ${hip_objects})
set_source_files_properties(${hip_objects} PROPERTIES EXTERNAL_OBJECT TRUE GENERATED TRUE)
set_target_properties(ggml_backend_hip PROPERTIES LINKER_LANGUAGE CXX)
target_link_libraries(ggml_backend_hip PRIVATE ggml_backend_module ${GGML_HIP_RUNTIME} ${CMAKE_DL_LIBS})
target_link_options(ggml_backend_hip PRIVATE
    -static-libstdc++ -static-libgcc LINKER:--exclude-libs,ALL LINKER:-z,defs)
