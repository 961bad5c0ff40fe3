// Every task that has run, with its times. All calls under the state's lock.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace emu {

struct Record {  // read by Python as it is
  char name[64];
  int32_t device;
  int32_t stream;  // -1: a copy without one
  int32_t graph;   // 0: not from a graph
  int32_t error;   // 0, or the ACL code with which it failed
  int64_t size;    // elements of an operator's output, bytes of a copy
  int64_t enqueued_ns;
  int64_t begin_ns;  // emulated
  int64_t end_ns;    // emulated
  int64_t real_ns;   // when the machine was really done with it
};

struct Trace {
  bool on = false;
  std::vector<Record> records;
  void add(const Record& record) {
    if (on) records.push_back(record);
  }
};

Trace& trace();
void name_record(Record& record, const std::string& name);

}  // namespace emu
