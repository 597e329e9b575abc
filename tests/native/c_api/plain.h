/* What a plugin in plain C does with the core's table: plain.c is compiled as C11. */
#ifndef HVD_TEST_PLAIN_H
#define HVD_TEST_PLAIN_H

#include "c_api/hvd_core.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct {
  int calls;
  int32_t code;
  char text[512];
} plain_ending;

/* A sum in place of `count` floats. `ending` is written when it has ended. */
int32_t plain_sum(hvd_engine* engine, const char* name, float* values, int64_t count,
                  plain_ending* ending, char* text, size_t text_size);
/* Bytes of the structs, as C sees them: request, outcome, output, table. */
void plain_sizes(size_t sizes[4]);

#ifdef __cplusplus
}
#endif
#endif
