// Marks what libquire shows; everything else is hidden.
#pragma once

#define QUIRE_API __attribute__((visibility("default")))
// The same of what plugins of models link to, which is bound to the exact version (models/model_plugin.h):
// for all that a header declares in `namespace quire QUIRE_MODEL_API`.
#define QUIRE_MODEL_API QUIRE_API
