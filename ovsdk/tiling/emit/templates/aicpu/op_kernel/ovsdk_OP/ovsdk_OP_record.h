// The record, as the tiling writes it and the kernel reads it: int64 alone, $length.
#pragma once

#include <cstdint>

$structs

constexpr int64_t RECORD_LENGTH = $capacity;

struct ${type}Record {
    int64_t words[RECORD_LENGTH];
};
