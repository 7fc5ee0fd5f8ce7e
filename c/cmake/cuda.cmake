# The CUDA backend (src/cuda), with GGML_CUDA=ON:
#   ggml_backend_cuda         the module, loaded when a program uses CUDA; exports only its entry point
#   ggml_backend_cuda_linked  the same for tests, as a library, if tests are built
# The runtime is linked statically, and looks for the driver at its first call. So the module loads without a driver.
find_package(CUDAToolkit 12.0 REQUIRED)

file(GLOB cuda_sources CONFIGURE_DEPENDS src/cuda/*.cu src/cuda/ops/*.cu)
set(cuda_entry src/cuda/backend.cu) # depends on whether it is in a module
list(FILTER cuda_sources EXCLUDE REGEX "/cuda/backend\\.cu$")
set(hopper_sources ${cuda_sources})
list(FILTER hopper_sources INCLUDE REGEX "_hopper\\.cu$")
list(FILTER cuda_sources EXCLUDE REGEX "_hopper\\.cu$")

include(cmake/cuda_architectures.cmake)
gb_cuda_has_hopper("${CMAKE_CUDA_ARCHITECTURES}" "${CMAKE_CUDA_ARCHITECTURES_NATIVE}" cuda_has_hopper)
set(cuda_has_hopper ${cuda_has_hopper} PARENT_SCOPE) # for the tests
# For tools/check_cuda.sh: how products of one and few rows read weights (kernels/stream.cuh).
set(GGML_CUDA_STREAM "" CACHE STRING "GB_STREAM of src/cuda/kernels/stream.cuh, 0 to 3; empty: its default")
mark_as_advanced(GGML_CUDA_STREAM)
if(NOT GGML_CUDA_STREAM STREQUAL "")
    set_source_files_properties(src/cuda/ops/product_few.cu src/cuda/ops/product_vectors.cu
        PROPERTIES COMPILE_DEFINITIONS GB_STREAM=${GGML_CUDA_STREAM})
endif()

# Kernels for 9.0a, and for no other architecture, so that code of a kernel is complete. Without 9.0a they are empty.
function(ggml_backend_cuda_hopper name)
    if(cuda_has_hopper)
        set_target_properties(${name} PROPERTIES CUDA_ARCHITECTURES 90a-real)
        target_compile_definitions(${name} PRIVATE GB_HOPPER_CODE)
    endif()
endfunction()

function(ggml_backend_cuda_target name)
    target_include_directories(${name} PRIVATE
        ${CMAKE_CURRENT_SOURCE_DIR}/src ${CMAKE_CURRENT_SOURCE_DIR}/include)
    target_compile_features(${name} PRIVATE cuda_std_17)
    target_compile_options(${name} PRIVATE
        $<$<COMPILE_LANGUAGE:CUDA>:-Xcudafe --diag_suppress=177 -Xcompiler=-Wall,-Wno-unused-function>)
    set_target_properties(${name} PROPERTIES
        CUDA_VISIBILITY_PRESET hidden CXX_VISIBILITY_PRESET hidden C_VISIBILITY_PRESET hidden
        CUDA_RUNTIME_LIBRARY Static POSITION_INDEPENDENT_CODE ON)
endfunction()

add_library(ggml_backend_cuda_objects OBJECT ${cuda_sources})
ggml_backend_cuda_target(ggml_backend_cuda_objects)
set(cuda_objects $<TARGET_OBJECTS:ggml_backend_cuda_objects>)
if(hopper_sources)
    add_library(ggml_backend_cuda_hopper_objects OBJECT ${hopper_sources})
    ggml_backend_cuda_target(ggml_backend_cuda_hopper_objects)
    ggml_backend_cuda_hopper(ggml_backend_cuda_hopper_objects)
    list(APPEND cuda_objects $<TARGET_OBJECTS:ggml_backend_cuda_hopper_objects>)
endif()

add_library(ggml_backend_cuda MODULE ${cuda_entry} ${cuda_objects})
ggml_backend_cuda_target(ggml_backend_cuda)
target_link_libraries(ggml_backend_cuda PRIVATE ggml_backend_module ${CMAKE_DL_LIBS})
# Links the C++ library statically, because other machines may lack it, and exports none of it.
if(CMAKE_SYSTEM_NAME STREQUAL "Linux")
    target_link_options(ggml_backend_cuda PRIVATE
        -static-libstdc++ -static-libgcc LINKER:--exclude-libs,ALL LINKER:-z,defs)
endif()

if(SKBUILD)
    install(TARGETS ggml_backend_cuda LIBRARY DESTINATION .) # beside the package's extension
    return()
endif()
set(module_dir ${CMAKE_INSTALL_LIBDIR}/ggml_backend)
install(TARGETS ggml_backend_cuda LIBRARY DESTINATION ${module_dir})
set(module_path ${module_dir}/$<TARGET_FILE_NAME:ggml_backend_cuda>)
if(NOT IS_ABSOLUTE ${module_dir})
    set(module_path ${CMAKE_INSTALL_PREFIX}/${module_path})
endif()
target_compile_definitions(ggml_backend_objects PRIVATE GB_CUDA_MODULE_PATH="${module_path}")

if(GGML_BACKEND_TESTS)
    add_library(ggml_backend_cuda_linked STATIC EXCLUDE_FROM_ALL
        ${cuda_entry} ${cuda_objects})
    ggml_backend_cuda_target(ggml_backend_cuda_linked)
    target_link_libraries(ggml_backend_cuda_linked PUBLIC CUDA::cudart_static)
endif()
