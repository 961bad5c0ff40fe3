"""Tests that a child pytest runs on the emulated NPU."""
