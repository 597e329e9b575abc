#include "cuda/driver/driver.h"

#include <algorithm>
#include <map>

#include "base/library.h"
#include "base/mutex.h"

namespace hvd::cuda {
namespace {

const char* const kRoom = "cuda/driver";
const char* const kSystems = "libcuda.so.1";

Status refuse(const std::string& why) { return Status::make(Code::kUnavailable, why, kRoom); }

const Site*& site_of_thread() {
  static thread_local const Site* site = nullptr;
  return site;
}

std::string words(const Driver& driver, CUresult error) {
  const char* name = nullptr;
  const char* text = nullptr;
  driver.cuGetErrorName(error, &name);
  driver.cuGetErrorString(error, &text);
  return (name == nullptr ? "error " + std::to_string(error) : std::string(name)) +
         (text == nullptr ? "" : std::string(" (") + text + ")");
}

Status start(const Driver& driver) {
  const CUresult error = driver.cuInit(0);
  if (error == CUDA_SUCCESS) return Status::ok();
  const std::string reason = words(driver, error);
  if (error == CUDA_ERROR_NO_DEVICE)
    return refuse("the CUDA driver shows no device to this process, " + reason +
                  ": look at nvidia-smi and CUDA_VISIBLE_DEVICES");
  return refuse("the CUDA driver does not start, " + reason +
                ": look at nvidia-smi (driver and kernel module must be of one version)");
}

// A driver runs code of any toolkit of its own major version; compressed kernels need a driver of
// CUDA 12.4 or newer.
constexpr int kLeastVersion = std::max(CUDA_VERSION / 1000 * 1000, 12'040);

std::string version_text(int version) {
  return std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10);
}

Status check_version(const Driver& driver) {
  int version = 0;
  if (driver.cuDriverGetVersion(&version) == CUDA_SUCCESS && version >= kLeastVersion)
    return Status::ok();
  return refuse("the CUDA driver is for CUDA " + version_text(version) +
                ", the core's kernels need one for " + version_text(kLeastVersion) +
                " or later: update it, or build the core with an older CUDA");
}

// The name of a missing function; nullptr: none.
const char* find_all(const Library& library, Driver& driver) {
#define HVD_CUDA_FIND(name, symbol) \
  if (!library.find(#symbol, driver.name)) return #symbol;
  HVD_CUDA_FUNCTIONS(HVD_CUDA_FIND)
#undef HVD_CUDA_FIND
  return nullptr;
}

Result<std::unique_ptr<Driver>> load(const std::string& file) {
  const Library library = Library::open(file);
  if (!library)
    return refuse("there is no CUDA driver here (" + library.why_not() +
                  "): install NVIDIA's driver on this machine");
  auto driver = std::make_unique<Driver>();
  driver->file = file;
  if (const char* const missing = find_all(library, *driver); missing != nullptr)
    return refuse("the CUDA driver (" + file + ") is too old, it has no " + missing +
                  ": update it to one for CUDA " + version_text(kLeastVersion) + " or later");
  Status status = start(*driver);
  if (status) status = check_version(*driver);
  if (!status) return status;
  return driver;
}

}  // namespace

const Site* current_site() { return site_of_thread(); }
void set_current_site(const Site* site) { site_of_thread() = site; }

Status Driver::check(CUresult result, const char* what) const {
  if (result == CUDA_SUCCESS) return Status::ok();
  const Site* const site = current_site();
  const std::string where = site == nullptr ? "" : site->name + ": ";
  const Code code = result == CUDA_ERROR_OUT_OF_MEMORY ? Code::kUnavailable : Code::kInternal;
  return Status::make(code, where + what + " failed: " + words(*this, result), kRoom,
                      site == nullptr ? -1 : site->rank);
}

Result<const Driver*> load_driver(const std::string& file) {
  static Mutex mutex;
  using Drivers = std::map<std::string, std::unique_ptr<Driver>>;
  static auto* const drivers = new Drivers;  // NOLINT(cppcoreguidelines-owning-memory): leaked
  const MutexLock lock(mutex);
  std::unique_ptr<Driver>& known = (*drivers)[file.empty() ? kSystems : file];
  if (known != nullptr) return known.get();
  Result<std::unique_ptr<Driver>> loaded = load(file.empty() ? kSystems : file);
  if (!loaded) return loaded.status();
  known = loaded.take();
  return known.get();
}

}  // namespace hvd::cuda
