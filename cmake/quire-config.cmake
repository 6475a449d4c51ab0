# What find_package(quire) reads of an installed tree.
include("${CMAKE_CURRENT_LIST_DIR}/quire-targets.cmake")

# quire_add_model_plugin(NAME SOURCE...)
#
# A library of models, libNAME.so, for `--plugin` and EngineConfig::plugins (models/model_plugin.h). It belongs to this
# very version of Quire.
function(quire_add_model_plugin name)
  add_library(${name} MODULE ${ARGN})
  target_link_libraries(${name} PRIVATE quire::model_plugin)
  set_target_properties(
    ${name}
    PROPERTIES CXX_EXTENSIONS OFF CXX_VISIBILITY_PRESET hidden VISIBILITY_INLINES_HIDDEN ON
  )
  # What is missing is said here rather than when it is loaded.
  target_link_options(${name} PRIVATE LINKER:-z,defs)
endfunction()
