// A fake MXNet: libfake_mxnet.so has the functions of native/mxnet/foreign.h under MXNet's names.
// What is pushed waits until the test lets it run, on the test's thread. As MXNet does, it copies
// nothing of an operation's argument, and drops the argument as soon as the operation has ended,
// within the call that ends it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace mxnet {

struct Chunk {
  std::vector<double> words;
  int reordered = 0;  // how often its elements were asked for row by row
};

// As MXNet's: a view, whose first word points to the memory.
class NDArray {
 public:
  NDArray(int type, std::vector<std::int64_t> shape, std::shared_ptr<Chunk> memory)
      : memory_(std::move(memory)), type_(type), shape_(std::move(shape)) {}
  void Reorder2DefaultAsync() const;
  Chunk& memory() const { return *memory_; }
  int type() const { return type_; }
  const std::vector<std::int64_t>& shape() const { return shape_; }  // {-1}: not known yet

 private:
  std::shared_ptr<Chunk> memory_;
  int type_;
  std::vector<std::int64_t> shape_;
};

}  // namespace mxnet

namespace fake_mxnet {

// An array of zeros, until MXNDArrayFree; of the memory of `other`, where there is one.
void* array(int type, const std::vector<std::int64_t>& shape, void* other = nullptr);
inline const mxnet::NDArray& of(void* handle) { return *static_cast<mxnet::NDArray*>(handle); }
std::size_t arrays();  // that there are

// What MXNet was passed for an operation, and for its end.
struct Operation {
  std::string name;
  int priority, property, device;
  std::vector<const mxnet::Chunk*> reads, writes;
  int ended = 0, dropped = 0;
  std::string error;  // of the end
};
const Operation& operation(std::size_t number);  // in the order of pushes
std::size_t pushed();

void run(std::size_t number);     // its arrays are ready
void forget(std::size_t number);  // the computation of one of its arrays had failed
// The next call of the function fails, once.
void fail(const std::string& function, const std::string& why);
void clear();  // forgets operations that have ended

}  // namespace fake_mxnet
