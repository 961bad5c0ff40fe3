// Descriptors, executors and the list of operators: what torch_npu looks up in libopapi.so besides the operators.
#include "operators.h"

#include <ATen/Dispatch.h>

#include <memory>
#include <utility>

namespace emu {

namespace {

// Inside a function, for operators list themselves while the library is being loaded.
std::vector<std::string>& names() {
  static std::vector<std::string> all;
  return all;
}

}  // namespace

std::optional<ScalarType> element_type(int data_type) {
  static constexpr std::pair<int, ScalarType> types[] = {
      {0, at::kFloat}, {1, at::kHalf},    {2, at::kChar},  {3, at::kInt},           {4, at::kByte},           {6, at::kShort},
      {9, at::kLong},  {11, at::kDouble}, {12, at::kBool}, {16, at::kComplexFloat}, {17, at::kComplexDouble}, {27, at::kBFloat16},
  };
  for (auto [code, type] : types)
    if (code == data_type) return type;
  return std::nullopt;
}

std::string text(const std::exception& error) {
  auto* torchs = dynamic_cast<const c10::Error*>(&error);
  return torchs ? torchs->what_without_backtrace() : error.what();
}

int launch(aclOpExecutor* executor, void* stream) {
  std::unique_ptr<aclOpExecutor> owned(executor);
  return enqueue(stream, owned->name, std::move(owned->body), owned->elements);
}

bool list(const char* name) {
  names().emplace_back(name);
  return true;
}

}  // namespace emu

// The names of all operators, sorted, one a line.
EMU_EXPORT const char* emu_operators() {
  static const std::string lines = [] {
    auto sorted = emu::names();
    std::sort(sorted.begin(), sorted.end());
    std::string lines;
    for (auto& name : sorted) lines += name + "\n";
    return lines;
  }();
  return lines.c_str();
}

// Format and shape of the storage say nothing that strides and offset do not.
EMU_EXPORT aclTensor* aclCreateTensor(const int64_t* shape, uint64_t dimensions, int data_type, const int64_t* strides, int64_t offset, int,
                                      const int64_t*, uint64_t, void* storage) {
  auto type = emu::element_type(data_type);
  if (!type) return new aclTensor{{}, data_type};
  auto* first = static_cast<char*>(emu::host_view(storage)) + offset * static_cast<int64_t>(c10::elementSize(*type));
  auto view = at::from_blob(first, {shape, dimensions}, {strides, dimensions}, at::TensorOptions().dtype(*type));
  view.unsafeGetTensorImpl()->set_allow_tensor_metadata_change(false);  // an output of another shape is an error, and not resized
  return new aclTensor{view, data_type};
}

EMU_EXPORT aclScalar* aclCreateScalar(void* value, int data_type) {
  auto type = emu::element_type(data_type);
  if (!type) return nullptr;
  return AT_DISPATCH_ALL_TYPES_AND_COMPLEX_AND3(at::kBool, at::kHalf, at::kBFloat16, *type, "aclCreateScalar",
                                                [&] { return new aclScalar{*static_cast<scalar_t*>(value)}; });
}

EMU_EXPORT aclIntArray* aclCreateIntArray(const int64_t* values, uint64_t count) { return new aclIntArray{{values, values + count}}; }

EMU_EXPORT aclTensorList* aclCreateTensorList(aclTensor* const* tensors, uint64_t count) {
  return new aclTensorList{{tensors, tensors + count}};
}

template <class Made>
static int destroy(const Made* made) {
  delete made;
  return 0;
}

EMU_EXPORT int aclDestroyTensor(const aclTensor* tensor) { return destroy(tensor); }
EMU_EXPORT int aclDestroyScalar(const aclScalar* scalar) { return destroy(scalar); }
EMU_EXPORT int aclDestroyIntArray(const aclIntArray* array) { return destroy(array); }
EMU_EXPORT int aclDestroyAclOpExecutor(const aclOpExecutor* executor) { return destroy(executor); }

// A list owns its tensors.
EMU_EXPORT int aclDestroyTensorList(const aclTensorList* list) {
  for (auto* tensor : list->tensors) destroy(tensor);
  return destroy(list);
}

// The caller owns the sizes and frees them with delete[].
EMU_EXPORT int aclGetViewShape(const aclTensor* tensor, int64_t** sizes, uint64_t* dimensions) {
  auto shape = tensor->view.sizes();
  *dimensions = shape.size();
  *sizes = std::copy(shape.begin(), shape.end(), new int64_t[shape.size()]) - shape.size();
  return 0;
}
