// Symbol visibility: what libhvd_core.so shows to the extension for Python, which is linked against
// it. All else is hidden.
#pragma once

#define HVD_VISIBLE __attribute__((visibility("default")))
