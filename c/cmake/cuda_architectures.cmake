# Which compute capabilities a CUDA toolkit compiles for, by its version.
#
# Code runs on devices of the same major number from its own minor number on. What the driver compiles again for others
# (PTX) is kept for 9.0, which serves whatever comes between the major numbers here, and for the newest.
function(gb_cuda_architectures version out)
    if(version VERSION_LESS 12.8)
        set(${out} "75-real;80-real;86-real;89-real;90" PARENT_SCOPE)
    else()
        set(${out} "75-real;80-real;86-real;89-real;90;100-real;120" PARENT_SCOPE)
    endif()
endfunction()

# Whether some files are compiled for 9.0a, which has what no other capability has (src/cuda/hopper.cuh): where code for
# 9.0 is made. `architectures` as CMAKE_CUDA_ARCHITECTURES has them, `native` those of this machine's devices.
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
