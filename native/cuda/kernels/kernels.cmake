# The kernels, compiled by nvcc (HVD_NVCC) for each kind of device, and as PTX for those to come. They
# lie in fatbin.cc as bytes; nothing of CUDA is linked. No fused multiply-add: every step is rounded
# on its own (native/tensor/reduce.h).
# HVD_CUDA_FATBIN: they are compiled already, by a build of the same sources, and lie there.
include(${CMAKE_CURRENT_LIST_DIR}/targets.cmake)
set(HVD_CUDA_TARGETS AUTO CACHE STRING "Kinds of devices (NN of sm_NN) to compile the kernels for, ALL, or AUTO: those of this machine")
set(HVD_CUDA_FATBIN "" CACHE FILEPATH "Kernels that are compiled already; empty: compile them")
set(HVD_FATBIN ${CMAKE_CURRENT_BINARY_DIR}/hvd_kernels.fatbin)
if(HVD_CUDA_FATBIN)
  set(HVD_FATBIN ${HVD_CUDA_FATBIN})
endif()
hvd_cuda_targets(HVD_KERNEL_TARGETS "${HVD_CUDA_TARGETS}" ${HVD_NVCC})
set(HVD_GENCODE "")
foreach(target ${HVD_KERNEL_TARGETS})
  list(APPEND HVD_GENCODE -gencode arch=compute_${target},code=sm_${target})
  set(HVD_NEWEST ${target})
endforeach()
list(APPEND HVD_GENCODE -gencode arch=compute_${HVD_NEWEST},code=compute_${HVD_NEWEST})

if(NOT HVD_CUDA_FATBIN)
  set(HVD_NVCC_WERROR "")
  if(HVD_WERROR)
    set(HVD_NVCC_WERROR -Werror all-warnings)
  endif()
  add_custom_command(
    OUTPUT ${HVD_FATBIN}
    COMMAND ${HVD_NVCC} -fatbin -std=c++17 -fmad=false ${HVD_NVCC_WERROR} -compress-mode=size --threads 0
            ${HVD_GENCODE} -I ${CMAKE_CURRENT_SOURCE_DIR} -o ${HVD_FATBIN} ${CMAKE_CURRENT_LIST_DIR}/kernels.cu
    DEPENDS ${CMAKE_CURRENT_LIST_DIR}/kernels.cu ${CMAKE_CURRENT_LIST_DIR}/loops.cuh
            ${CMAKE_CURRENT_LIST_DIR}/ring.cuh ${CMAKE_CURRENT_LIST_DIR}/element.cuh
            ${CMAKE_CURRENT_LIST_DIR}/functions.h
    COMMENT "CUDA kernels for sm_${HVD_KERNEL_TARGETS} (nvcc)"
    VERBATIM)
endif()
set_source_files_properties(
  ${CMAKE_CURRENT_LIST_DIR}/fatbin.cc PROPERTIES
  OBJECT_DEPENDS ${HVD_FATBIN}
  COMPILE_DEFINITIONS "HVD_CUDA_FATBIN=\"${HVD_FATBIN}\"")
