// A fake TensorFlow: libfake_tensorflow.so has the functions of native/tf/foreign.h under
// TensorFlow's names. Ops and kernels that are registered stay for the process; a test makes a node
// of an op, and runs it with tensors.
//
// As TensorFlow does, it destroys `done` when compute returns, lends an input's memory to an output
// only while nobody else holds the input, and frees memory that it was given with the giver's
// function.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

namespace fake_tensorflow {

constexpr int kFloat = 1, kInt32 = 3, kUint8 = 4, kString = 7, kInt64 = 9;

class Memory {
 public:
  explicit Memory(std::size_t bytes) : words_((bytes + 7) / 8), data_(words_.data()) {}
  Memory(void* data, std::function<void()> free) : data_(data), free_(std::move(free)) {}
  ~Memory() {
    if (free_) free_();
  }
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;
  void* data() const { return data_; }

 private:
  std::vector<std::uint64_t> words_;
  void* data_;
  std::function<void()> free_;
};

struct Tensor {
  int type = kFloat;
  std::vector<std::int64_t> shape;
  std::shared_ptr<Memory> memory;

  template <typename Element>
  Element* as() const {
    return static_cast<Element*>(memory->data());
  }
};
Tensor floats(const std::vector<float>& values, std::vector<std::int64_t> shape = {});
Tensor int32s(const std::vector<std::int32_t>& values);
Tensor bytes(const std::string& text);
Tensor of_type(int type, std::vector<std::int64_t> shape);
std::vector<float> values(const Tensor& tensor);

struct Op {
  std::vector<std::string> attributes, inputs, outputs;
  bool stateful = false;
  // Shapes of results by those of inputs; {-2}: nothing is known, -1: an extent is not.
  std::function<std::string(const std::vector<std::vector<std::int64_t>>&,
                            std::vector<std::vector<std::int64_t>>*)>
      shapes;
};
const std::map<std::string, Op>& ops();
// Device -> arguments that its kernel has in the memory of the host.
const std::map<std::string, std::set<std::string>>& kernels(const std::string& op);

// Whether it runs `done` as one that another C++ library had made: not at all.
void be_deaf(bool deaf);

class Node {
 public:
  Node(const std::string& op, const std::string& name,
       const std::map<std::string, std::int64_t>& attributes = {});
  ~Node();
  Node(const Node&) = delete;
  Node& operator=(const Node&) = delete;
  const std::string& op() const { return op_; }
  void* kernel() const { return kernel_; }

 private:
  std::string op_;
  void* kernel_;
};

// One run of a node. It holds its inputs as long as it lives.
class Run {
 public:
  explicit Run(std::vector<Tensor> inputs, std::int64_t step = 1, std::int64_t turn = 0);
  ~Run();
  Run(const Run&) = delete;
  Run& operator=(const Run&) = delete;

  void begin(const Node& node);
  int ended() const;  // how often
  int code() const;   // 0, or that of the failure
  std::string text() const;
  const Tensor& output(std::size_t index) const;
  void forbid_forwarding();  // somebody else reads the inputs

 private:
  struct Inside;
  std::unique_ptr<Inside> inside_;
};

}  // namespace fake_tensorflow
