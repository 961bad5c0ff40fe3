"""ovsdk: overlap host and device work, on any device or on none.

General layout: `run` is the whole of it; a Scheduler and an Executor are yours (see `interfaces`); a backend is opened by
name. Values are in `types`, errors in `errors`, pictures in the Report. Nothing is imported here that is not needed to
say `run`, and never torch.
"""

from .errors import (
    BackendProtocolError,
    BackendUnavailable,
    ConfigError,
    CostUnknown,
    Deadlock,
    DeviceError,
    DeviceLost,
    DeviceMemoryExhausted,
    DeviceTimeout,
    DriverError,
    HookFailed,
    OvsdkError,
    PluginConflict,
    PluginError,
    ProfileError,
    ProtocolError,
    ReplayDiverged,
    SchedulerProtocolError,
    SimulationError,
    StepError,
    TilingError,
)
from .hookspecs import hookimpl
from .interfaces import Admission, Backend, Clock, Executor, Future, Queue, Scheduler, Signal, Stream, Tiler
from .log import RunLog, read_log
from .plugins import make, open_backend, plugin_manager
from .queues import AdmissionQueue
from .report import Report
from .run import Run, RunInfo, run, start
from .types import BLOCKED, CLOSED, FINISHED, IDLE, MOVED, WAIT, Answer, Ask, Capabilities, Launch, Method, Progress, Resident, Span

__version__ = "0.1.0"

__all__ = [
    "BLOCKED", "CLOSED", "FINISHED", "IDLE", "MOVED", "WAIT",
    "Admission", "AdmissionQueue", "Answer", "Ask", "Backend", "BackendProtocolError", "BackendUnavailable", "Capabilities",
    "Clock", "ConfigError", "CostUnknown", "Deadlock", "DeviceError", "DeviceLost", "DeviceMemoryExhausted", "DeviceTimeout",
    "DriverError", "Executor", "Future", "HookFailed", "Launch", "Method", "OvsdkError", "PluginConflict", "PluginError",
    "ProfileError", "Progress", "ProtocolError", "Queue", "ReplayDiverged", "Report", "Resident", "Run", "RunInfo", "RunLog",
    "Scheduler", "SchedulerProtocolError", "Signal", "SimulationError", "Span", "StepError", "Stream", "Tiler",
    "TilingError",
    "hookimpl", "make", "open_backend", "plugin_manager", "read_log", "run", "start",
]  # fmt: skip
