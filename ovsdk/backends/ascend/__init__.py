"""Ascend NPUs through torch_npu, and an emulated ACL runtime for machines without one.

    probe      whether the backend can be opened here, or the reason; imports no device library
    backend    what `open_backend("ascend:0")` makes
    acl_errors what the runtime says, as our errors
    graphs     launches captured once and replayed
    syncs      where a launch makes the host wait
    doctor     a page about this machine
    emulator   our own runtime behind torch_npu's unmodified wheel

Importing this package imports none of them.
"""
