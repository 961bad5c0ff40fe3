"""What overlap costs, and what it hides, on this machine: four tables.

A result that beats max(D, S) is refused. Devices are processes and threads of this machine: emulated, no accelerator.
"""

from __future__ import annotations

import sys

import _driver_cost
import _language_model
import _sleep_device
import _start_latency
from _table import Section, main

SECTIONS = {
    "a": Section("what a driver costs a step, no-op work on a device that is done at once", _driver_cost.measure),
    "b": Section("host work hidden behind a device process that takes a given time", _sleep_device.measure),
    "c": Section("from launch to start on an idle device", _start_latency.measure),
    "d": Section("SmolLM2 with the demo's host work, serial against overlap", _language_model.measure),
}

if __name__ == "__main__":
    sys.exit(main(__doc__, SECTIONS))
