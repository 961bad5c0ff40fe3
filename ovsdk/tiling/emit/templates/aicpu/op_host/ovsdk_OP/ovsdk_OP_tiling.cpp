// The tiling of $op: on the host while a graph is compiled, on the AICPU while it runs.

#include "ovsdk_${op}_tiling.h"

#include "../../op_kernel/ovsdk_$op/ovsdk_${op}_record.h"
#include "ovsdk_${op}_derive.h"
#include "register/device_op_impl_registry.h"
#include "tiling/platform/platform_ascendc.h"

namespace optiling {
namespace {

constexpr int64_t ARGUMENT_COUNT = $argument_count;

// What is launched with: block dimension and workspace.
ge::graphStatus Launch(gert::TilingContext *context, int64_t cores, int64_t key, int64_t workspace)
{
    size_t *sizes = context->GetWorkspaceSizes(1);
    if (sizes == nullptr) {
        return ge::GRAPH_FAILED;
    }
    auto platform = platform_ascendc::PlatformAscendC(context->GetPlatformInfo());
    sizes[0] = platform.GetLibApiWorkSpaceSize() + static_cast<size_t>(workspace);
    context->SetBlockDim(static_cast<uint32_t>(cores > 0 ? cores : 1));
    context->SetTilingKey(static_cast<uint64_t>(key));
    return ge::GRAPH_SUCCESS;
}

}  // namespace

ge::graphStatus ${type}Tiling(gert::TilingContext *context)
{
    const auto *attributes = context->GetAttrs();
    const auto *arguments = attributes->GetListInt(ARGUMENTS);
    const gert::Tensor *values = context->GetInputTensor(VALUES);
    auto *data = context->GetTilingData<${type}Record>();
    if (arguments == nullptr || values == nullptr || data == nullptr || arguments->GetSize() != ARGUMENT_COUNT) {
        return ge::GRAPH_FAILED;
    }
    if (*attributes->GetInt(LENGTH) > RECORD_LENGTH) {
        return ge::GRAPH_FAILED;
    }
    for (int64_t i = 0; i < RECORD_LENGTH; ++i) {
        data->words[i] = 0;
    }
    const int64_t *v = values->GetData<int64_t>();
    if (v == nullptr) {  // the graph is being compiled: nobody knows the values, so take what none exceeds
        return Launch(context, *attributes->GetInt(CORES_OF_ANY), 0, *attributes->GetInt(WORKSPACE_OF_ANY));
    }
    int64_t a[ARGUMENT_COUNT];
    for (int64_t i = 0; i < ARGUMENT_COUNT; ++i) {
        a[i] = arguments->GetData()[i];
    }
    a[0] = values->GetShapeSize();
    ovsdk_$op::$derive(a, v, data->words);
    const auto *record = reinterpret_cast<const ${op}_tiling *>(data->words);
    if (record->fault != 0) {
        return ge::GRAPH_FAILED;
    }
    return Launch(context, record->block_dim, record->key, record->workspace);
}

DEVICE_IMPL_OP_OPTILING($type).Tiling(${type}Tiling);

}  // namespace optiling
