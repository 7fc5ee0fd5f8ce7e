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
