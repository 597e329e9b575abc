// Shapes of results as far as a graph that is being traced can know them.
#pragma once

#include "tf/foreign.h"

namespace hvd::tf {

void same_shapes(TF_ShapeInferenceContext* context,
                 TF_Status* status);  // as the inputs, without the ticket
void other_rows(TF_ShapeInferenceContext* context,
                TF_Status* status);  // the first dimension is unknown
void exchanged_rows(TF_ShapeInferenceContext* context, TF_Status* status);  // so too; and a vector
void scalar(TF_ShapeInferenceContext* context, TF_Status* status);
void vector(TF_ShapeInferenceContext* context, TF_Status* status);
void no_output(TF_ShapeInferenceContext* context, TF_Status* status);

}  // namespace hvd::tf
