"""Kernels in Triton that cut their work on the device: on CUDA with triton, on NPUs with triton-ascend, on a CPU in Triton's interpreter.

The grid is fixed: as many programs as the device has cores, whatever the values. None of them makes the host wait. A module imports
torch and triton; TRITON_INTERPRET=1 must be set before anything imports triton.

reduce          sum over axes that the kernel reads
grouped_matmul  products of groups of rows that the kernel reads
split_kv        flash-decode over ragged lengths: by a table that was made on the device, or cut in the kernel
"""
