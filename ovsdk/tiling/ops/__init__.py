"""Operators: one module for a family, each with OPERATORS. `ovsdk.tiling.operator` says what an operator is."""
