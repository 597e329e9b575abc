# Where nvcc and cuda.h are: HVD_NVCC and HVD_CUDA_INCLUDE, or *-NOTFOUND. CUDA_HOME, PATH, the usual
# place, or PyPI's wheels in the Python that builds this (pip install nvidia-cuda-nvcc
# nvidia-cuda-runtime nvidia-cuda-crt nvidia-nvvm), which lie in nvidia/cuNN of its packages.
find_package(Python QUIET COMPONENTS Interpreter)
set(HVD_CUDA_WHEELS "")
if(Python_Interpreter_FOUND)
  execute_process(COMMAND ${Python_EXECUTABLE} -c "import nvidia; print(';'.join(nvidia.__path__))"
                  OUTPUT_VARIABLE HVD_NVIDIA OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
  foreach(folder ${HVD_NVIDIA})
    file(GLOB found ${folder}/cu*/bin)
    list(APPEND HVD_CUDA_WHEELS ${found})
  endforeach()
endif()
find_program(HVD_NVCC nvcc HINTS ENV CUDA_HOME PATH_SUFFIXES bin PATHS /usr/local/cuda/bin ${HVD_CUDA_WHEELS})
set(HVD_NVCC_LEAST 12.8)  # which knows sm_100, and compresses
if(HVD_NVCC)
  execute_process(COMMAND ${HVD_NVCC} --version OUTPUT_VARIABLE HVD_NVCC_SAYS ERROR_QUIET)
  string(REGEX MATCH "release ([0-9.]+)" HVD_NVCC_SAYS "${HVD_NVCC_SAYS}")
  if(CMAKE_MATCH_1 AND CMAKE_MATCH_1 VERSION_LESS HVD_NVCC_LEAST)
    message(WARNING "${HVD_NVCC} is of CUDA ${CMAKE_MATCH_1}, the core's kernels need ${HVD_NVCC_LEAST} or later: built without them")
    set(HVD_NVCC HVD_NVCC-NOTFOUND)
  endif()
endif()
if(HVD_NVCC)
  get_filename_component(HVD_CUDA_HOME ${HVD_NVCC} REALPATH)
  get_filename_component(HVD_CUDA_HOME ${HVD_CUDA_HOME}/../.. ABSOLUTE)
  find_path(HVD_CUDA_INCLUDE cuda.h HINTS ${HVD_CUDA_HOME}/include ENV CUDA_HOME
            PATHS /usr/local/cuda/include PATH_SUFFIXES include)
endif()
