// Symbol visibility: marks what libhvd_core.so exports to the Python extension, which is linked
// against it. Everything else is hidden.
#pragma once

#define HVD_VISIBLE __attribute__((visibility("default")))
