#define DOCTEST_CONFIG_IMPLEMENT
#include <doctest/doctest.h>

#include <iostream>

int main(int argc, char** argv) {
  std::cout << std::unitbuf;  // else a child that a test forks says again what is not written yet
  return doctest::Context(argc, argv).run();
}
