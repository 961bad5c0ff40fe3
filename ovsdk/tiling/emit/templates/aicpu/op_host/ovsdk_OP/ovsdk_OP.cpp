// What a graph knows of the operator: inputs, output, attributes, and that its tiling, not its shape, depends on `$values`.

#include "ovsdk_${op}_tiling.h"

namespace {

// The output is as large as any values can make it.
ge::graphStatus InferShape(gert::InferShapeContext *context)
{
    gert::Shape *output = context->GetOutputShape(0);
    output->SetDimNum(1);
    output->SetDim(0, *context->GetAttrs()->GetInt(optiling::OUTPUTS_OF_ANY));
    return ge::GRAPH_SUCCESS;
}

ge::graphStatus InferDataType(gert::InferDataTypeContext *context)
{
    return context->SetOutputDataType(0, context->GetInputDataType(optiling::DATA));
}

}  // namespace

namespace ops {

class $type : public OpDef {
public:
    explicit $type(const char *name) : OpDef(name)
    {
        this->Input("x")
            .ParamType(REQUIRED)
            .DataType({ge::DT_FLOAT16, ge::DT_FLOAT, ge::DT_BF16})
            .Format({ge::FORMAT_ND, ge::FORMAT_ND, ge::FORMAT_ND});
        this->Input("$values")
            .ParamType(REQUIRED)
            .DataType({ge::DT_INT64, ge::DT_INT64, ge::DT_INT64})
            .Format({ge::FORMAT_ND, ge::FORMAT_ND, ge::FORMAT_ND})
            .ValueDepend(OPTIONAL, DependScope::TILING);
        this->Output("y")
            .ParamType(REQUIRED)
            .DataType({ge::DT_FLOAT16, ge::DT_FLOAT, ge::DT_BF16})
            .Format({ge::FORMAT_ND, ge::FORMAT_ND, ge::FORMAT_ND});
        this->Attr("arguments").AttrType(REQUIRED).ListInt();
        this->Attr("length").AttrType(REQUIRED).Int();
        this->Attr("cores").AttrType(REQUIRED).Int();
        this->Attr("workspace").AttrType(REQUIRED).Int();
        this->Attr("outputs").AttrType(REQUIRED).Int();
        this->SetInferShape(InferShape).SetInferDataType(InferDataType);
        this->AICore().SetTiling(optiling::${type}Tiling);
        this->AICore().AddConfig("ascend910b");
        this->AICore().AddConfig("ascend910_93");
    }
};

OP_ADD($type);

}  // namespace ops
