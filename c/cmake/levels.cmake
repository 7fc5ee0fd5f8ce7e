# Kernel levels: the templates of src/cpu/kernels are compiled once per level with that level's flags.
#
# Sets `level_objects`, and defines GB_HAVE_LEVEL_<NAME> of each level for ggml_backend_objects (levels.def). A level is
# one object file with one global symbol, its table. So code compiled with its flags cannot leak into code that runs
# everywhere. Link-time optimization is off for the same reason.
include(CheckCCompilerFlag)
include(CheckCSourceCompiles)
set(level_objects)

# ggml_backend_level(<name> <folder> <flags>...): the level that <folder>/level_<name>.c is, below src/cpu/kernels.
function(ggml_backend_level name folder)
    set(target ggml_backend_level_${name})
    add_library(${target} OBJECT src/cpu/kernels/${folder}/level_${name}.c)
    target_link_libraries(${target} PRIVATE ggml_backend_flags)
    target_compile_options(${target} PRIVATE ${ARGN})
    if(NOT MSVC)
        # Loops begin cache lines, so that a kernel's speed does not depend on the code in front of it.
        target_compile_options(${target} PRIVATE -fno-lto $<$<CONFIG:RelWithDebInfo>:-O3>
            $<$<C_COMPILER_ID:GNU>:-falign-functions=64$<SEMICOLON>-falign-loops=64>)
    endif()
    set_target_properties(${target} PROPERTIES INTERPROCEDURAL_OPTIMIZATION OFF)
    string(TOUPPER ${name} upper)
    target_compile_definitions(ggml_backend_objects PRIVATE GB_HAVE_LEVEL_${upper})
    set(level_objects ${level_objects} $<TARGET_OBJECTS:${target}> PARENT_SCOPE)
endfunction()

ggml_backend_level(scalar .)

string(TOLOWER "${CMAKE_SYSTEM_PROCESSOR}" processor)
if(processor MATCHES "^(x86_64|amd64)$" AND CMAKE_SIZEOF_VOID_P EQUAL 8)
    if(MSVC)
        ggml_backend_level(avx2 x86 /arch:AVX2)
        ggml_backend_level(avx512 x86 /arch:AVX512)
    else()
        set(avx2 -mavx2 -mfma -mf16c -mbmi2)
        set(avx512 ${avx2} -mavx512f -mavx512bw -mavx512dq -mavx512vl)
        set(avx512vnni ${avx512} -mavx512vnni -mavx512vbmi)
        ggml_backend_level(avx2 x86 ${avx2})
        ggml_backend_level(avx512 x86 ${avx512} -mprefer-vector-width=512)
        ggml_backend_level(avx512vnni x86 ${avx512vnni} -mprefer-vector-width=512)
        ggml_backend_level(avx512bf16 x86 ${avx512vnni} -mavx512bf16 -mprefer-vector-width=512)
        # From gcc 11 and clang 11 on. The header of gcc 12 holds strides in a long, which on Windows is no register for
        # an address: so the instructions are tried, not only the flags.
        set(CMAKE_REQUIRED_FLAGS "-mamx-tile -mamx-bf16")
        check_c_source_compiles("#include <immintrin.h>
            int main(int argc, char ** argv) {
                _tile_loadd(0, argv, (long long) argc * 64);
                _tile_stored(0, argv, (long long) argc * 64);
                return 0;
            }" GGML_BACKEND_ASSEMBLES_AMX)
        unset(CMAKE_REQUIRED_FLAGS)
        if(GGML_BACKEND_ASSEMBLES_AMX)
            ggml_backend_level(amx x86 ${avx512vnni} -mavx512bf16 -mamx-tile -mamx-bf16 -mprefer-vector-width=512)
        endif()
    endif()
elseif(processor MATCHES "^(aarch64|arm64)$")
    ggml_backend_level(neon arm)
    if(NOT MSVC)
        # Processors with these are of version 8.2 in all that matters here: kernels hold no atomics.
        ggml_backend_level(dotprod arm -march=armv8.2-a+dotprod)
        check_c_compiler_flag(-march=armv8.2-a+dotprod+i8mm GGML_BACKEND_COMPILES_I8MM)
        if(GGML_BACKEND_COMPILES_I8MM) # from gcc 10 and clang 11 on
            ggml_backend_level(i8mm arm -march=armv8.2-a+dotprod+i8mm)
        endif()
    endif()
endif()
