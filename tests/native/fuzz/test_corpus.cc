// What the fuzzer starts from, with the ordinary compiler; and damaged versions of it.
//   corpus/   one message or two, made by make_corpus() below: HVD_MAKE_CORPUS=1 writes it anew
#include <doctest/doctest.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <random>
#include <string>
#include <vector>

#include "engine/controller/world.h"
#include "engine/message/wire.h"
#include "fuzz/feed.h"

namespace hvd::test {
namespace {

namespace fs = std::filesystem;

std::string read(const fs::path& path) {
  std::FILE* file = std::fopen(path.c_str(), "rb");
  REQUIRE(file != nullptr);
  std::string bytes(fs::file_size(path), '\0');
  CHECK(std::fread(bytes.data(), 1, bytes.size(), file) == bytes.size());
  std::fclose(file);
  return bytes;
}

void write(const fs::path& path, const std::string& bytes) {
  std::FILE* file = std::fopen(path.c_str(), "wb");
  REQUIRE(file != nullptr);
  CHECK(std::fwrite(bytes.data(), 1, bytes.size(), file) == bytes.size());
  std::fclose(file);
}

std::string seed(const std::string& a, const std::string& b) {
  const std::size_t all = a.size() + b.size();
  for (int cut = 0; cut < 256; ++cut) {
    if (all * static_cast<std::size_t>(cut) / 255 != a.size()) continue;
    return std::string(1, static_cast<char>(cut)) + a + b;
  }
  return std::string(1, '\0') + a + b;
}

std::string asks_of(const std::vector<RequestMessage>& full,
                    std::vector<std::uint64_t> slots = {}) {
  RequestList requests;
  requests.assignments = 9;
  requests.slots = std::move(slots);
  requests.full = full;
  return encode(requests);
}

std::string response_list_of(const ResponseMessage& message) {
  std::string items;
  append_response(items, message);
  append_again(items, 0, 0);
  append_cached(items, {0});
  return hvd::response_list_of(items, 3);
}

std::string answer_to(const Request& request, std::vector<std::int64_t> sizes = {}) {
  ResponseMessage message;
  message.response.kind = request.kind;
  message.response.names = {request.name};
  message.response.sizes = std::move(sizes);
  message.slots = {0};
  message.version = 1;
  return response_list_of(message);
}

ResponseMessage failed(Code code) {
  ResponseMessage message;
  message.response.names = {"a"};
  message.response.status = Status::make(code, "no", "test", 3);
  message.only = {1, 3};
  return message;
}

ResponseMessage change(Kind kind, std::vector<std::int64_t> sizes) {
  ResponseMessage message;
  message.response.kind = kind;
  message.response.rank = 3;
  message.response.sizes = std::move(sizes);
  message.response.names = {"c"};
  return message;
}

std::vector<std::string> make_corpus() {
  const Request sum = sum_of("a", {3});
  Request rows = of_kind(Kind::kAllgather, "b", {3});
  Request splits = of_kind(Kind::kAlltoall, "d", {7});
  splits.sizes.assign(7, 1);
  Request leave = about(Kind::kLeave, "");
  std::vector<std::string> all{
      seed(asks_of({{sum, {}}, {rows, {}}}), asks_of({{sum, {}}, {rows, {}}})),
      seed(asks_of({{splits, {}}, {sum_of("a", {4}), {3}}}), asks_of({{sum, {}}})),
      seed(asks_of({{about(Kind::kJoin, "join"), {3}}}), asks_of({{leave, {2}}})),
      seed(asks_of({{about(Kind::kAddSet, "add", {0, 3}), {}}}), asks_of({}, {3})),
      seed(asks_of({{about(Kind::kAllocate, "e", {64}), {}}}), asks_of({}, {1, 2})),
      seed(answer_to(sum), asks_of({}, {1})),
      seed(answer_to(rows, {1, 2, 3, 4, 5, 6, 7}), answer_to(sum)),
      seed(response_list_of(failed(Code::kStalled)), response_list_of(failed(Code::kMismatch))),
      seed(response_list_of(change(Kind::kAddSet, {1, 1, 3})),
           response_list_of(change(Kind::kRemoveSet, {1, 1}))),
      seed(response_list_of(change(Kind::kLeave, {})), response_list_of(change(Kind::kJoin, {}))),
      seed(response_list_of(change(Kind::kTune, {})), ""),
  };
  return all;
}

std::vector<fs::path> corpus() {
  std::vector<fs::path> paths;
  for (const auto& entry : fs::directory_iterator(HVD_CORPUS)) paths.push_back(entry.path());
  std::sort(paths.begin(), paths.end());
  return paths;
}

void feed_text(const std::string& bytes) {
  feed(reinterpret_cast<const std::uint8_t*>(bytes.data()), bytes.size());
}

}  // namespace

TEST_CASE("fuzz: the corpus holds the output of the encoder") {
  const std::vector<std::string> seeds = make_corpus();
  for (std::size_t i = 0; i < seeds.size(); ++i) {
    const fs::path path = fs::path(HVD_CORPUS) / ("seed" + std::to_string(100 + i));
    if (std::getenv("HVD_MAKE_CORPUS") != nullptr) write(path, seeds[i]);
    CHECK_MESSAGE(read(path) == seeds[i], "the format has changed: HVD_MAKE_CORPUS=1 writes ",
                  path.string());
  }
}

TEST_CASE("fuzz: nothing in the corpus crashes, nor anything near it") {
  std::mt19937 random(3);
  for (const fs::path& path : corpus()) {
    const std::string good = read(path);
    feed_text(good);
    for (int round = 0; round < 2000; ++round) {
      std::string bytes = good;
      for (int i = 0; i < 1 + round % 5; ++i) {
        bytes[random() % bytes.size()] = static_cast<char>(random() % (round % 2 == 0 ? 256 : 4));
      }
      feed_text(bytes.substr(0, 1 + random() % bytes.size()));
      feed_text(bytes);
    }
  }
}

}  // namespace hvd::test
