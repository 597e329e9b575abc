// How many cores there are: by the affinity mask, and by CPU quotas of cgroups, of which the texts
// are given.
#include <doctest/doctest.h>

#include <map>
#include <string>
#include <thread>

#include "base/cores.h"

using namespace hvd;

namespace {

using Files = std::map<std::string, std::string>;

int quota_of(const Files& files) {
  return quota_cores([&](const std::string& path) {
    const auto file = files.find(path);
    return file == files.end() ? std::string() : file->second;
  });
}

// The files of one cgroup, version 2.
int quota_of(const std::string& cpu_max) {
  return quota_of(Files{{"/proc/self/cgroup", "0::/\n"}, {"/sys/fs/cgroup/cpu.max", cpu_max}});
}

}  // namespace

TEST_CASE("cores: at least one, at most those of the machine") {
  CHECK(usable_cores() >= 1);
  CHECK(usable_cores() <= static_cast<int>(std::thread::hardware_concurrency()));
}

TEST_CASE("cores: a quota in whole cores, at least one") {
  CHECK(quota_of("200000 100000\n") == 2);
  CHECK(quota_of("250000 100000\n") == 2);  // a third thread that spins would stop them all
  CHECK(quota_of("50000 100000\n") == 1);
  CHECK(quota_of("75000 25000\n") == 3);
}

TEST_CASE("cores: no quota, or an invalid one") {
  for (const char* text : {"", "max 100000\n", "max", "-1 100000", "0 100000", "100000", "100000 0",
                           "x y", "99999999999999999999 1"})
    CHECK(quota_of(text) == 0);
  CHECK(quota_of(Files()) == 0);
  for (const char* lines : {"rubbish", ":", "::", "0::", "0::no/slash", "1:cpu", "7:name=x:/\n"})
    CHECK(quota_of(Files{{"/proc/self/cgroup", lines}}) == 0);
}

TEST_CASE("cores: the smallest quota from the own cgroup up counts") {
  const Files nested{{"/proc/self/cgroup", "0::/jobs/mine/rank\n"},
                     {"/sys/fs/cgroup/cpu.max", "max 100000"},
                     {"/sys/fs/cgroup/jobs/cpu.max", "800000 100000"},
                     {"/sys/fs/cgroup/jobs/mine/cpu.max", "300000 100000"},
                     {"/sys/fs/cgroup/jobs/mine/rank/cpu.max", "max 100000"},
                     {"/sys/fs/cgroup/jobs/other/cpu.max", "100000 100000"}};
  CHECK(quota_of(nested) == 3);
}

TEST_CASE("cores: version 1, with other controllers, in a container with its own root") {
  const Files container{{"/proc/self/cgroup",
                         "9:memory:/docker/abc\n4:cpu,cpuacct:/docker/abc\n2:cpuset:/docker/abc\n"},
                        {"/sys/fs/cgroup/cpu/cpu.cfs_quota_us", "400000\n"},
                        {"/sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000\n"}};
  CHECK(quota_of(container) == 4);
  const Files host{{"/proc/self/cgroup", "1:cpu:/mine\n0::/mine\n"},
                   {"/sys/fs/cgroup/cpu/cpu.cfs_quota_us", "-1\n"},
                   {"/sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000\n"},
                   {"/sys/fs/cgroup/cpu/mine/cpu.cfs_quota_us", "500000\n"},
                   {"/sys/fs/cgroup/cpu/mine/cpu.cfs_period_us", "100000\n"}};
  CHECK(quota_of(host) == 5);
  const Files only_accounts{{"/proc/self/cgroup", "2:cpuacct:/\n"},
                            {"/sys/fs/cgroup/cpu/cpu.cfs_quota_us", "400000\n"},
                            {"/sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000\n"}};
  CHECK(quota_of(only_accounts) == 0);
}
