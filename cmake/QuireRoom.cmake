# Flags that every target of ours shares, and the function that declares a room.
include_guard()

find_package(Threads REQUIRED)

add_library(quire_flags INTERFACE)
target_compile_features(quire_flags INTERFACE cxx_std_20)
target_compile_options(quire_flags INTERFACE "$<$<COMPILE_LANGUAGE:CXX>:-Wall;-Wextra>")
target_link_libraries(quire_flags INTERFACE Threads::Threads)
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13)
  # Wrong about std::string's operator+ (GCC PR 105651).
  target_compile_options(quire_flags INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-Wno-restrict>)
endif()
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_GREATER_EQUAL 13)
  # Takes a reference to what an argument refers to for one to the argument (GCC PR 109642).
  target_compile_options(quire_flags INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-Wno-dangling-reference>)
endif()
# A toolchain may link its C++ library statically. Shown by ours, its symbols would mix with those of another copy in the
# process (torch brings the shared one), whose objects differ.
target_link_options(quire_flags INTERFACE "LINKER:--exclude-libs,libstdc++.a")
# What __FILE__ says does not depend on where the clone is.
target_compile_options(quire_flags INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-fmacro-prefix-map=${PROJECT_SOURCE_DIR}/=>)
if(QUIRE_WERROR)
  target_compile_options(quire_flags INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-Werror>)
endif()
# In a directory that sets it, the undefined behaviour of targets is not checked, which takes a third of the time to compile.
define_property(TARGET PROPERTY QUIRE_UNDEFINED_UNCHECKED INITIALIZE_FROM_VARIABLE QUIRE_UNDEFINED_UNCHECKED)
foreach(sanitizer IN LISTS QUIRE_SANITIZE)
  set(option -fsanitize=${sanitizer})
  if(sanitizer STREQUAL "undefined" AND NOT QUIRE_SANITIZE_ALL)
    set(option "$<$<NOT:$<BOOL:$<TARGET_PROPERTY:QUIRE_UNDEFINED_UNCHECKED>>>:${option}>")
  endif()
  target_compile_options(quire_flags INTERFACE ${option} -fno-omit-frame-pointer -fno-sanitize-recover=all)
  target_link_options(quire_flags INTERFACE -fsanitize=${sanitizer})
endforeach()
if("undefined" IN_LIST QUIRE_SANITIZE AND NOT QUIRE_SANITIZE_ALL)
  # Half of what the sanitizer takes to compile. Accesses through null crash, with a stack, and the address sanitizer
  # knows the sizes of objects.
  target_compile_options(quire_flags INTERFACE -fno-sanitize=null,object-size,vptr)
endif()

# quire_unity(TARGET): compiles files of the target together, unless QUIRE_UNITY is OFF.
#
# Most of a file's compilation is headers and what they instantiate, and is then paid once for several files. They share
# their unnamed namespaces. CMake leaves out sources with compile options of their own.
function(quire_unity target)
  set_target_properties(${target} PROPERTIES UNITY_BUILD ${QUIRE_UNITY} UNITY_BUILD_BATCH_SIZE 8)
endfunction()

# quire_room(NAME SOURCES a.cpp ... [DEPENDS quire::other ...])
#
# An object library, hidden symbols, linked into libquire. An archive would drop the files whose only
# job is to register themselves. Includes are written from cpp/src ("kv_cache/block_pool.h").
function(quire_room name)
  cmake_parse_arguments(ROOM "" "" "SOURCES;DEPENDS" ${ARGN})
  add_library(quire_${name} OBJECT ${ROOM_SOURCES})
  add_library(quire::${name} ALIAS quire_${name})
  set_target_properties(
    quire_${name}
    PROPERTIES POSITION_INDEPENDENT_CODE ON CXX_VISIBILITY_PRESET hidden VISIBILITY_INLINES_HIDDEN ON CXX_EXTENSIONS OFF
  )
  target_compile_definitions(quire_${name} PRIVATE QUIRE_BUILDING)
  target_include_directories(
    quire_${name}
    PUBLIC
      "$<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/cpp/include>"
      "$<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/cpp/src>"
      "$<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/csrc/include>"
  )
  target_link_libraries(quire_${name} PUBLIC quire_flags ${ROOM_DEPENDS})
  quire_unity(quire_${name})
  set_property(GLOBAL APPEND PROPERTY QUIRE_ROOMS quire_${name})
endfunction()
