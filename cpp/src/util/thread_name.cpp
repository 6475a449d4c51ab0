#include "util/thread_name.h"

#include <pthread.h>

namespace quire {

void name_this_thread(const char* name) {
#ifdef __APPLE__
  pthread_setname_np(name);
#else
  pthread_setname_np(pthread_self(), name);
#endif
}

}  // namespace quire
