# xgrammar's C++, which the grammar room keeps behind its own interface: fetched by version and hash, compiled once for all
# trees of this clone, linked into libquire. Sets QUIRE_HAS_XGRAMMAR and the target quire_xgrammar.
include_guard()
include(ExternalProject)

# The environment has the first word in a new tree: a command that makes several says it once.
set(quire_xgrammar_default AUTO)
if(NOT "$ENV{QUIRE_XGRAMMAR}" STREQUAL "")
  set(quire_xgrammar_default "$ENV{QUIRE_XGRAMMAR}")
endif()
set(
  QUIRE_XGRAMMAR
  ${quire_xgrammar_default}
  CACHE STRING
  "Structured output by xgrammar: ON, OFF, or AUTO (when its source can be had)"
)
set_property(CACHE QUIRE_XGRAMMAR PROPERTY STRINGS AUTO ON OFF)
set(QUIRE_XGRAMMAR_ARCHIVE "" CACHE FILEPATH "xgrammar-0.2.8.tar.gz on this machine, instead of PyPI's")

set(QUIRE_HAS_XGRAMMAR OFF)
if(QUIRE_XGRAMMAR STREQUAL "OFF")
  return()
endif()

set(xgrammar_name xgrammar-0.2.8)
set(xgrammar_sha256 8305646fd2b319d6c3003f51a1665e54cbbe9cba1fb636bc41d0b46434ccbb80)
set(
  xgrammar_url
  https://files.pythonhosted.org/packages/03/0f/29f521535729be740779c2c98b630ef6607cf28be9b669895dd2b821ff63/${xgrammar_name}.tar.gz
)
# Trees of a clone lie side by side in build/, and share it.
string(FIND "${CMAKE_BINARY_DIR}" "${PROJECT_SOURCE_DIR}/build/" is_in_clone)
if(is_in_clone EQUAL 0)
  set(xgrammar_dir "${PROJECT_SOURCE_DIR}/build/xgrammar")
else()
  set(xgrammar_dir "${CMAKE_BINARY_DIR}/xgrammar")
endif()
set(xgrammar_source "${xgrammar_dir}/${xgrammar_name}")

# Throws nothing: what went wrong is in `problem`.
function(quire_fetch_xgrammar problem)
  set(${problem} "" PARENT_SCOPE)
  file(MAKE_DIRECTORY "${xgrammar_dir}")
  file(LOCK "${xgrammar_dir}" DIRECTORY GUARD FUNCTION TIMEOUT 600)
  if(EXISTS "${xgrammar_source}/LICENSE")
    return()
  endif()
  set(archive "${QUIRE_XGRAMMAR_ARCHIVE}")
  if(NOT archive)
    set(archive "${xgrammar_dir}/${xgrammar_name}.tar.gz")
    file(DOWNLOAD ${xgrammar_url} "${archive}" STATUS status TIMEOUT 120)
    list(GET status 0 code)
    if(NOT code EQUAL 0)
      list(GET status 1 reason)
      set(${problem} "${xgrammar_url} could not be fetched (${reason})" PARENT_SCOPE)
      return()
    endif()
  elseif(NOT EXISTS "${archive}")
    set(${problem} "QUIRE_XGRAMMAR_ARCHIVE names no file: ${archive}" PARENT_SCOPE)
    return()
  endif()
  file(SHA256 "${archive}" hash)
  if(NOT hash STREQUAL xgrammar_sha256)
    set(${problem} "${archive} has SHA-256 ${hash}, expected ${xgrammar_sha256}" PARENT_SCOPE)
    return()
  endif()
  # The name appears when all of it is there.
  file(ARCHIVE_EXTRACT INPUT "${archive}" DESTINATION "${xgrammar_dir}/unpacked")
  file(RENAME "${xgrammar_dir}/unpacked/${xgrammar_name}" "${xgrammar_source}")
endfunction()

quire_fetch_xgrammar(problem)
if(problem)
  if(QUIRE_XGRAMMAR STREQUAL "ON")
    message(FATAL_ERROR "QUIRE_XGRAMMAR is ON, but ${problem}; give QUIRE_XGRAMMAR_ARCHIVE")
  endif()
  message(
    STATUS
    "Building without structured output: ${problem}. QUIRE_XGRAMMAR_ARCHIVE names ${xgrammar_name}.tar.gz "
    "where there is no network; QUIRE_XGRAMMAR=OFF silences this"
  )
  return()
endif()

# Trees may name one compiler differently. Clang's driver goes by the name that it is called by.
set(xgrammar_compiler "${CMAKE_CXX_COMPILER}")
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  file(REAL_PATH "${CMAKE_CXX_COMPILER}" xgrammar_compiler)
endif()
string(MD5 xgrammar_build_id "${xgrammar_compiler} ${CMAKE_CXX_COMPILER_VERSION} ${CMAKE_GENERATOR}")
string(SUBSTRING "${xgrammar_build_id}" 0 8 xgrammar_build_id)
set(xgrammar_build "${xgrammar_dir}/build-${xgrammar_build_id}")
set(xgrammar_library "${xgrammar_build}/libxgrammar.a")
# Compiled without the sanitizers, which are for our own code: one archive serves every tree.
ExternalProject_Add(
  quire_xgrammar_build
  SOURCE_DIR "${PROJECT_SOURCE_DIR}/cmake/xgrammar"
  PREFIX "${CMAKE_CURRENT_BINARY_DIR}/xgrammar_stamps"
  BINARY_DIR "${xgrammar_build}"
  CMAKE_ARGS
    -DCMAKE_BUILD_TYPE=Release -DCMAKE_CXX_COMPILER=${xgrammar_compiler} -DXGRAMMAR_SOURCE=${xgrammar_source}
    "-DQUIRE_GRAMMAR_ROOM=${PROJECT_SOURCE_DIR}/cpp/src/grammar"
  CMAKE_CACHE_ARGS "-DCMAKE_CXX_COMPILER_LAUNCHER:STRING=${CMAKE_CXX_COMPILER_LAUNCHER}"
  BUILD_ALWAYS ON
  INSTALL_COMMAND ""
  BUILD_BYPRODUCTS "${xgrammar_library}"
)
add_library(quire_xgrammar STATIC IMPORTED GLOBAL)
set_target_properties(quire_xgrammar PROPERTIES IMPORTED_LOCATION "${xgrammar_library}")
add_dependencies(quire_xgrammar quire_xgrammar_build)
set(QUIRE_XGRAMMAR_INCLUDES "${xgrammar_source}/include" "${xgrammar_source}/3rdparty/dlpack/include")
set_property(GLOBAL APPEND PROPERTY QUIRE_LINK_LIBRARIES "$<BUILD_INTERFACE:quire_xgrammar>")
# Of picojson, which is compiled in, the licence is the beginning of its only file.
file(READ "${xgrammar_source}/3rdparty/picojson/picojson.h" picojson_license LIMIT 4096)
string(FIND "${picojson_license}" "*/" end_of_license)
string(SUBSTRING "${picojson_license}" 0 ${end_of_license} picojson_license)
file(CONFIGURE OUTPUT "${CMAKE_CURRENT_BINARY_DIR}/LICENSE.picojson" CONTENT "${picojson_license}*/\n" @ONLY)
set(
  QUIRE_XGRAMMAR_LICENSES
  "${xgrammar_source}/LICENSE"
  "${xgrammar_source}/NOTICE"
  "${CMAKE_CURRENT_BINARY_DIR}/LICENSE.picojson"
)
set(QUIRE_HAS_XGRAMMAR ON)
