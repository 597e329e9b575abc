#include "plain.h"

#include <string.h>

static void ended(void* context, const hvd_outcome* outcome) {
  plain_ending* ending = (plain_ending*)context;
  ending->code = outcome->code;
  strncpy(ending->text, outcome->text, sizeof(ending->text) - 1);
  ++ending->calls;
}

int32_t plain_sum(hvd_engine* engine, const char* name, float* values, int64_t count,
                  plain_ending* ending, char* text, size_t text_size) {
  int64_t shape[1] = {count};
  DLTensor tensor = {
      .data = values, .device = {kDLCPU, 0}, .ndim = 1, .dtype = {kDLFloat, 32, 1}, .shape = shape};
  hvd_request request = {.struct_size = sizeof(request),
                         .kind = HVD_ALLREDUCE,
                         .name = name,
                         .count = 1,
                         .inputs = &tensor,
                         .outputs = &tensor,
                         .op = HVD_SUM,
                         .prescale = 1,
                         .postscale = 1,
                         .done = &ended,
                         .context = ending};
  return hvd_core_table()->enqueue(engine, &request, text, text_size);
}

void plain_sizes(size_t sizes[4]) {
  sizes[0] = sizeof(hvd_request);
  sizes[1] = sizeof(hvd_outcome);
  sizes[2] = sizeof(hvd_output);
  sizes[3] = sizeof(hvd_core);
}
