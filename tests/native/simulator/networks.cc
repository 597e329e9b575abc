#include "simulator/networks.h"

#include <algorithm>
#include <utility>

namespace hvd::sim {
namespace {

using Sizes = std::vector<std::int64_t>;  // elements, in the order of the forward pass

// With its batch norm.
void convolution(Sizes& sizes, std::int64_t in, std::int64_t out, std::int64_t height,
                 std::int64_t width) {
  for (const std::int64_t size : {in * out * height * width, out, out}) sizes.push_back(size);
}

void square(Sizes& sizes, std::int64_t in, std::int64_t out, std::int64_t kernel) {
  convolution(sizes, in, out, kernel, kernel);
}

void with_bias(Sizes& sizes, std::int64_t weights, std::int64_t out) {
  sizes.push_back(weights);
  sizes.push_back(out);
}

Sizes backwards(Sizes elements) {
  for (std::int64_t& size : elements) size *= 4;
  std::reverse(elements.begin(), elements.end());
  return elements;
}

Sizes resnet(int third_stage) {
  Sizes sizes;
  square(sizes, 3, 64, 7);
  std::int64_t in = 64;
  const std::pair<int, std::int64_t> stages[] = {{3, 64}, {4, 128}, {third_stage, 256}, {3, 512}};
  for (const auto& [blocks, width] : stages) {
    for (int block = 0; block < blocks; ++block) {
      square(sizes, in, width, 1);
      square(sizes, width, width, 3);
      square(sizes, width, 4 * width, 1);
      if (block == 0) square(sizes, in, 4 * width, 1);
      in = 4 * width;
    }
  }
  with_bias(sizes, 2048 * 1000, 1000);
  return backwards(sizes);
}

Sizes vgg16() {
  Sizes sizes;
  std::int64_t in = 3;
  for (const int out : {64, 64, 128, 128, 256, 256, 256, 512, 512, 512, 512, 512, 512}) {
    with_bias(sizes, in * out * 9, out);
    in = out;
  }
  with_bias(sizes, std::int64_t{512 * 7 * 7} * 4096, 4096);
  with_bias(sizes, 4096 * 4096, 4096);
  with_bias(sizes, 4096 * 1000, 1000);
  return backwards(sizes);
}

// The blocks have their names of "Rethinking the Inception Architecture" in torchvision.
void inception_a(Sizes& sizes, std::int64_t in, std::int64_t pooled) {
  square(sizes, in, 64, 1);
  square(sizes, in, 48, 1);
  square(sizes, 48, 64, 5);
  square(sizes, in, 64, 1);
  square(sizes, 64, 96, 3);
  square(sizes, 96, 96, 3);
  square(sizes, in, pooled, 1);
}

void inception_c(Sizes& sizes, std::int64_t width) {
  square(sizes, 768, 192, 1);
  square(sizes, 768, width, 1);
  convolution(sizes, width, width, 1, 7);
  convolution(sizes, width, 192, 7, 1);
  square(sizes, 768, width, 1);
  for (const auto& [height, across] : {std::pair{7, 1}, {1, 7}, {7, 1}})
    convolution(sizes, width, width, height, across);
  convolution(sizes, width, 192, 1, 7);
  square(sizes, 768, 192, 1);
}

void inception_e(Sizes& sizes, std::int64_t in) {
  square(sizes, in, 320, 1);
  square(sizes, in, 384, 1);
  convolution(sizes, 384, 384, 1, 3);
  convolution(sizes, 384, 384, 3, 1);
  square(sizes, in, 448, 1);
  square(sizes, 448, 384, 3);
  convolution(sizes, 384, 384, 1, 3);
  convolution(sizes, 384, 384, 3, 1);
  square(sizes, in, 192, 1);
}

// Without the auxiliary classifier.
Sizes inception_v3() {
  Sizes sizes;
  square(sizes, 3, 32, 3);
  square(sizes, 32, 32, 3);
  square(sizes, 32, 64, 3);
  square(sizes, 64, 80, 1);
  square(sizes, 80, 192, 3);
  inception_a(sizes, 192, 32);
  inception_a(sizes, 256, 64);
  inception_a(sizes, 288, 64);
  square(sizes, 288, 384, 3);  // B
  square(sizes, 288, 64, 1);
  square(sizes, 64, 96, 3);
  square(sizes, 96, 96, 3);
  for (const std::int64_t width : {128, 160, 160, 192}) inception_c(sizes, width);
  square(sizes, 768, 192, 1);  // D
  square(sizes, 192, 320, 3);
  square(sizes, 768, 192, 1);
  convolution(sizes, 192, 192, 1, 7);
  convolution(sizes, 192, 192, 7, 1);
  square(sizes, 192, 192, 3);
  inception_e(sizes, 1280);
  inception_e(sizes, 2048);
  with_bias(sizes, 2048 * 1000, 1000);
  return backwards(sizes);
}

double step_of(double images_per_second) { return 64e9 / images_per_second; }

}  // namespace

std::vector<std::int64_t> resnet50() { return resnet(6); }

std::vector<Network> networks() {
  return {{"ResNet-50", resnet50(), step_of(219)},
          {"ResNet-101", resnet(23), step_of(129)},
          {"Inception V3", inception_v3(), step_of(142)},
          {"VGG-16", vgg16(), step_of(154)}};
}

}  // namespace hvd::sim
