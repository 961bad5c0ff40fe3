"""Virtual time: a device, a clock and host lanes that are simulated, for the scheduler, executor and driver that are deployed.

A price file says what stages and operators cost, and on what machine: `prices` is the file, `price` one price in it, `operators`
and `hardware` its sections, `reading` how strictly it is read. `lower` makes a launch into `rows`. Two programs run rows, each
the other's judge: by events, `kernel` with `servers` (the device) and `host` (cores and GIL) in it; and `maxplus` with one
recurrence, `ahead` for each launch of a run, `whole` for a run of full batches at once, `passage` for what their spans need.
`device` is the clock and what drivers hold of the device; `inline` and `lanes` are the drivers in virtual time; `backend` puts
them together. Needs neither torch nor a device.
"""

from .backend import SimBackend
from .prices import Prices, load_prices, shipped

__all__ = ["Prices", "SimBackend", "load_prices", "shipped"]
