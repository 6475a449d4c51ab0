# Finds the CUDA toolkit, as QUIRE_CUDA asks, and sets QUIRE_HAS_CUDA. At the top, so that its targets are seen
# everywhere.
include_guard()

set(QUIRE_HAS_CUDA OFF)
if(QUIRE_CUDA STREQUAL "OFF")
  return()
endif()
find_program(QUIRE_NVCC nvcc HINTS "$ENV{CUDA_HOME}/bin" /usr/local/cuda/bin)
if(NOT QUIRE_NVCC)
  if(QUIRE_CUDA STREQUAL "ON")
    message(FATAL_ERROR "QUIRE_CUDA is ON, but nvcc was not found: install the CUDA toolkit or set CUDA_HOME")
  endif()
  return()
endif()
set(CMAKE_CUDA_COMPILER "${QUIRE_NVCC}")
if(NOT DEFINED CMAKE_CUDA_ARCHITECTURES AND "$ENV{CUDAARCHS}" STREQUAL "")
  set(CMAKE_CUDA_ARCHITECTURES 80-real 90a-real)
endif()
# Code for 9.0 that leaves out what only 9.0a has would fail when it is run.
foreach(architecture IN LISTS CMAKE_CUDA_ARCHITECTURES ITEMS $ENV{CUDAARCHS})
  if(architecture MATCHES "^90(-real|-virtual)?$")
    message(
      FATAL_ERROR
      "CUDA architecture ${architecture}: Quire's Hopper kernels need 90a "
      "(CMAKE_CUDA_ARCHITECTURES or CUDAARCHS)"
    )
  endif()
endforeach()
set(CMAKE_CUDA_RUNTIME_LIBRARY Static)
enable_language(CUDA)
find_package(CUDAToolkit REQUIRED)
# The runtime is static: the library loads on machines without CUDA.
set_property(GLOBAL APPEND PROPERTY QUIRE_LINK_LIBRARIES "$<BUILD_INTERFACE:CUDA::cudart_static>")
set(QUIRE_HAS_CUDA ON)
