// What a CPU build of torch lacks to differentiate fake tensors on "cuda": a device guard that does nothing, and hooks
// that say that there is an accelerator. torch looks for both once, as it is imported, so this is loaded before it.
#include <ATen/detail/CUDAHooksInterface.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

namespace {

c10::Device first_gpu() { return {c10::DeviceType::CUDA, 0}; }

c10::Stream default_stream() { return c10::Stream(c10::Stream::DEFAULT, first_gpu()); }

struct PretendedGuard final : c10::impl::NoOpDeviceGuardImpl<c10::DeviceType::CUDA> {
  c10::Device exchangeDevice(c10::Device) const override { return first_gpu(); }
  c10::Device getDevice() const override { return first_gpu(); }
  c10::Stream getStream(c10::Device) const noexcept override { return default_stream(); }
  c10::Stream exchangeStream(c10::Stream) const noexcept override { return default_stream(); }
  void record(void**, const c10::Stream&, const c10::DeviceIndex, const c10::EventFlag) const override {}
  void block(void*, const c10::Stream&) const override {}
  bool queryEvent(void*) const override { return true; }
};

const PretendedGuard guard;
const c10::impl::DeviceGuardImplRegistrar registrar(c10::DeviceType::CUDA, &guard);

}  // namespace

namespace at {

struct PretendedHooks final : CUDAHooksInterface {
  explicit PretendedHooks(CUDAHooksArgs) {}
  bool hasCUDA() const override { return true; }
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(DeviceIndex) const override { return true; }
  void init() const override {}
  bool isPinnedPtr(const void*) const override { return false; }
  DeviceIndex deviceCount() const override { return 1; }
  DeviceIndex getCurrentDevice() const override { return 0; }
  DeviceIndex current_device() const override { return 0; }
  int getNumGPUs() const override { return 1; }
};

C10_REGISTER_TYPED_CLASS(CUDAHooksRegistry, "CUDAHooks", PretendedHooks)

}  // namespace at
