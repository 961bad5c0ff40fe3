"""Virtual time: a device, a clock and host lanes that are simulated, for the scheduler, executor and driver that are deployed.

A price file (`prices`) says what each stage and launch costs; `kernel` is the law of events; `device` is the clock and
its streams; `lanes` is the two-lane driver; `backend` puts them together. Needs neither torch nor a device.
"""

from .backend import SimBackend
from .prices import Prices, load_prices, shipped

__all__ = ["Prices", "SimBackend", "load_prices", "shipped"]
