# Which compute capabilities a CUDA toolkit compiles for, by its version.
#
# Code runs on devices of the same major number and at least its own minor number. The driver compiles PTX again for
# other devices. PTX is kept for 9.0, for devices between the major numbers here, and for the newest.
function(gb_cuda_architectures version out)
    if(version VERSION_LESS 12.8)
        set(${out} "75-real;80-real;86-real;89-real;90" PARENT_SCOPE)
    else()
        set(${out} "75-real;80-real;86-real;89-real;90;100-real;120" PARENT_SCOPE)
    endif()
endfunction()

# True if code for 9.0 is made: some files are then compiled for 9.0a, whose features no other capability has
# (src/cuda/hopper.cuh). `architectures` as CMAKE_CUDA_ARCHITECTURES has them, `native` those of this machine's devices.
function(gb_cuda_has_hopper architectures native out)
    set(${out} FALSE PARENT_SCOPE)
    if(architectures MATCHES "^native$")
        set(architectures "${native}")
    endif()
    foreach(architecture IN LISTS architectures)
        if(architecture MATCHES "^(90a?(-real|-virtual)?|all|all-major)$")
            set(${out} TRUE PARENT_SCOPE)
        endif()
    endforeach()
endfunction()
