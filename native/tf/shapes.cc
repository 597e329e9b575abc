#include "tf/shapes.h"

namespace hvd::tf {
namespace {

constexpr auto kUnknown = static_cast<std::size_t>(-1);

bool good(TF_Status* status) { return tf()->GetCode(status) == 0; }

int tensors(TF_ShapeInferenceContext* context) {
  return static_cast<int>(tf()->ShapeInferenceContextNumInputs(context)) -
         1;  // the last one is the ticket
}

// [rows, ...] -> [?, ...]; a shape that is not known at all stays so.
void other_rows_of(TF_ShapeInferenceContext* context, int index, TF_Status* status) {
  const Shape input(tf()->NewShapeHandle()), rest(tf()->NewShapeHandle()),
      output(tf()->NewShapeHandle());
  tf()->ShapeInferenceContextGetInput(context, index, input.get(), status);
  if (!good(status)) return;
  if (tf()->ShapeInferenceContextRankKnown(context, input.get()) == 0) {
    return tf()->ShapeInferenceContextSetOutput(context, index, input.get(), status);
  }
  const std::int64_t rank = tf()->ShapeInferenceContextRank(context, input.get());
  if (rank == 0) {
    return tf()->SetStatus(status, static_cast<int>(Code::kInvalidArgument),
                           "a scalar has no rows; reshape it to [1]");
  }
  tf()->ShapeInferenceContextSubshape(context, input.get(), 1, rank, rest.get(), status);
  if (!good(status)) return;
  const Shape rows(tf()->ShapeInferenceContextVectorFromSize(context, kUnknown));
  tf()->ShapeInferenceContextConcatenateShapes(context, rows.get(), rest.get(), output.get(),
                                               status);
  if (good(status)) tf()->ShapeInferenceContextSetOutput(context, index, output.get(), status);
}

}  // namespace

void same_shapes(TF_ShapeInferenceContext* context, TF_Status* status) {
  const Shape shape(tf()->NewShapeHandle());
  for (int i = 0; i < tensors(context) && good(status); ++i) {
    tf()->ShapeInferenceContextGetInput(context, i, shape.get(), status);
    if (good(status)) tf()->ShapeInferenceContextSetOutput(context, i, shape.get(), status);
  }
}

void other_rows(TF_ShapeInferenceContext* context, TF_Status* status) {
  for (int i = 0; i < tensors(context) && good(status); ++i) other_rows_of(context, i, status);
}

void exchanged_rows(TF_ShapeInferenceContext* context, TF_Status* status) {
  other_rows_of(context, 0, status);
  if (!good(status)) return;
  const Shape received(tf()->ShapeInferenceContextVectorFromSize(context, kUnknown));
  tf()->ShapeInferenceContextSetOutput(context, 1, received.get(), status);
}

void scalar(TF_ShapeInferenceContext* context, TF_Status* status) {
  const Shape shape(tf()->ShapeInferenceContextScalar(context));
  tf()->ShapeInferenceContextSetOutput(context, 0, shape.get(), status);
}

void vector(TF_ShapeInferenceContext* context, TF_Status* status) {
  const Shape shape(tf()->ShapeInferenceContextVectorFromSize(context, kUnknown));
  tf()->ShapeInferenceContextSetOutput(context, 0, shape.get(), status);
}

void no_output(TF_ShapeInferenceContext* /*context*/, TF_Status* /*status*/) {}

}  // namespace hvd::tf
