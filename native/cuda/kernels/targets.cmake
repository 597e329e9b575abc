# hvd_cuda_targets(OUT REQUEST NVCC): the kinds of devices (sm_NN) to compile kernels for.
# REQUEST is AUTO, ALL or a list of kinds. Each kind takes nvcc 15 s to minutes: an installation from
# source (AUTO) needs those of its own machine, a wheel for other machines needs ALL. Without a device
# the oldest kind, whose PTX every newer device can compile when it loads the kernels.
set(HVD_CUDA_ALL_TARGETS 75 80 86 89 90 100)

function(hvd_cuda_targets out request nvcc)
  if(request STREQUAL "ALL")
    set(targets ${HVD_CUDA_ALL_TARGETS})
  elseif(request STREQUAL "AUTO")
    execute_process(COMMAND nvidia-smi --query-gpu=compute_cap --format=csv,noheader
                    OUTPUT_VARIABLE capabilities ERROR_QUIET)
    string(REGEX MATCHALL "[0-9]+\\.[0-9]" capabilities "${capabilities}")
    string(REPLACE "." "" targets "${capabilities}")
    execute_process(COMMAND ${nvcc} --list-gpu-code OUTPUT_VARIABLE known ERROR_QUIET)
    foreach(target ${targets})  # a device newer than nvcc runs the PTX of an older kind
      if(NOT known MATCHES "sm_${target}[^0-9]")
        list(REMOVE_ITEM targets ${target})
      endif()
    endforeach()
    list(REMOVE_DUPLICATES targets)
    list(SORT targets COMPARE NATURAL)
    if(NOT targets)
      list(GET HVD_CUDA_ALL_TARGETS 0 targets)
    endif()
  else()
    set(targets ${request})
  endif()
  set(${out} ${targets} PARENT_SCOPE)
endfunction()
