// Names for threads, as ps -L, top -H, gdb and profilers show them.
#pragma once

namespace quire {

// At most 15 characters.
void name_this_thread(const char* name);

}  // namespace quire
