# Fails when an object file that was compiled for an instruction set of its own offers a function to the
# rest of the program by a name that others may use too (a weak symbol): the linker could keep this copy,
# and a machine without the instructions would crash in it.
#
# cmake -DNM=<nm> -DOBJECTS=<a.o,b.o,...> -P check_isa_symbols.cmake
string(REPLACE "," ";" objects "${OBJECTS}")
foreach(object IN LISTS objects)
  if(NOT object MATCHES "/isa/")
    continue()
  endif()
  execute_process(
    COMMAND "${NM}" --defined-only --demangle "${object}"
    OUTPUT_VARIABLE symbols
    COMMAND_ERROR_IS_FATAL ANY
  )
  if(symbols MATCHES "[0-9a-f]+ [WVu] ([^\n]*)")
    message(FATAL_ERROR "${object} shares ${CMAKE_MATCH_1}")
  endif()
endforeach()
