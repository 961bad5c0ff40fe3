// Declarations of what our emitted op_host sources use of CANN, written by us after its public documentation, for tests alone.
// They hold what a test puts in and takes out; nothing of this runs on a device.
#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <vector>

namespace ge {
using graphStatus = uint32_t;
constexpr graphStatus GRAPH_SUCCESS = 0, GRAPH_FAILED = 0xFFFFFFFF;
enum DataType { DT_FLOAT = 0, DT_FLOAT16 = 1, DT_INT64 = 9, DT_BF16 = 27 };
enum Format { FORMAT_ND = 2 };
}  // namespace ge

namespace gert {

struct List {
    std::vector<int64_t> items;
    size_t GetSize() const { return items.size(); }
    const int64_t *GetData() const { return items.data(); }
};

struct Attributes {
    List list;
    std::vector<int64_t> numbers;
    const List *GetListInt(size_t index) const { return index == 0 ? &list : nullptr; }
    const int64_t *GetInt(size_t index) const { return &numbers.at(index - 1); }
};

struct Tensor {
    const int64_t *data;
    int64_t size;
    template <typename T>
    const T *GetData() const { return data; }
    int64_t GetShapeSize() const { return size; }
};

struct Shape {
    std::vector<int64_t> sizes;
    void SetDimNum(size_t count) { sizes.resize(count); }
    void SetDim(size_t index, int64_t size) { sizes.at(index) = size; }
};

struct Platform {};

struct TilingContext {
    Attributes attributes;
    Tensor values;
    std::vector<int64_t> data;
    size_t workspace;
    uint32_t cores;
    uint64_t key;
    Platform platform;
    const Attributes *GetAttrs() const { return &attributes; }
    const Tensor *GetInputTensor(size_t index) const { return index == 1 ? &values : nullptr; }
    size_t *GetWorkspaceSizes(size_t) { return &workspace; }
    Platform *GetPlatformInfo() { return &platform; }
    void SetBlockDim(uint32_t count) { cores = count; }
    void SetTilingKey(uint64_t number) { key = number; }
    template <typename T>
    T *GetTilingData()
    {
        data.assign(sizeof(T) / sizeof(int64_t), -1);
        return reinterpret_cast<T *>(data.data());
    }
};

struct InferShapeContext {
    Attributes attributes;
    Shape output;
    Shape *GetOutputShape(size_t) { return &output; }
    const Attributes *GetAttrs() const { return &attributes; }
};

struct InferDataTypeContext {
    ge::DataType GetInputDataType(size_t) const { return ge::DT_FLOAT; }
    ge::graphStatus SetOutputDataType(size_t, ge::DataType) { return ge::GRAPH_SUCCESS; }
};

}  // namespace gert

namespace ops {

enum Option { REQUIRED, OPTIONAL };
enum class DependScope { ALL, TILING };

struct OpParamDef {
    OpParamDef &ParamType(Option) { return *this; }
    OpParamDef &DataType(std::initializer_list<ge::DataType>) { return *this; }
    OpParamDef &Format(std::initializer_list<ge::Format>) { return *this; }
    OpParamDef &ValueDepend(Option, DependScope) { return *this; }
};

struct OpAttrDef {
    OpAttrDef &AttrType(Option) { return *this; }
    OpAttrDef &ListInt() { return *this; }
    OpAttrDef &Int() { return *this; }
};

struct OpAICoreDef {
    OpAICoreDef &SetTiling(ge::graphStatus (*)(gert::TilingContext *)) { return *this; }
    OpAICoreDef &AddConfig(const char *) { return *this; }
};

class OpDef {
public:
    explicit OpDef(const char *) {}
    OpParamDef &Input(const char *) { return param; }
    OpParamDef &Output(const char *) { return param; }
    OpAttrDef &Attr(const char *) { return attr; }
    OpDef &SetInferShape(ge::graphStatus (*)(gert::InferShapeContext *)) { return *this; }
    OpDef &SetInferDataType(ge::graphStatus (*)(gert::InferDataTypeContext *)) { return *this; }
    OpAICoreDef &AICore() { return core; }

private:
    OpParamDef param;
    OpAttrDef attr;
    OpAICoreDef core;
};

}  // namespace ops

#define OP_ADD(type) static const type added_##type(#type)
