// Marks what libquire shows; everything else is hidden.
#pragma once

#define QUIRE_API __attribute__((visibility("default")))
