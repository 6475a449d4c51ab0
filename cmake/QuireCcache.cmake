# Compiles through ccache where it is installed, so that another clone, or another tree of this one, finds what has been
# compiled before: paths are hashed relative to the repository.
include_guard()
option(QUIRE_CCACHE "Compile through ccache where it is installed" ON)
find_program(QUIRE_CCACHE_PROGRAM ccache)
if(NOT QUIRE_CCACHE OR NOT QUIRE_CCACHE_PROGRAM OR CMAKE_CXX_COMPILER_LAUNCHER)
  return()
endif()
set(
  CMAKE_CXX_COMPILER_LAUNCHER
  "${CMAKE_COMMAND}"
  -E
  env
  "CCACHE_BASEDIR=${PROJECT_SOURCE_DIR}"
  CCACHE_NOHASHDIR=1
  "CCACHE_IGNOREOPTIONS=-fmacro-prefix-map=*"
  "${QUIRE_CCACHE_PROGRAM}"
)
set(CMAKE_CUDA_COMPILER_LAUNCHER "${CMAKE_CXX_COMPILER_LAUNCHER}")
