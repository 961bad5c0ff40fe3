"""A first pipeline: sequences of Fibonacci numbers, made on a device, with and without overlap, and in virtual time."""

import time

import attrs

import ovsdk

# ---- the model


class Fibonacci:
    """Lives on the device. It keeps the last two numbers of each name, so the host need not know them to go on."""

    def __init__(self, device):
        self.last = {}

    def forward(self, names):
        time.sleep(0.003)  # an accelerator's work: it takes time, but none of the host's
        return [self.advance(name) for name in names]

    def advance(self, name):
        a, b = self.last.get(name, (0, 1))
        self.last[name] = (b, a + b)
        return b


# ---- the scheduler


@attrs.frozen
class Batch:
    names: tuple[str, ...]

    @property
    def features(self):
        return {"batch": len(self.names)}


class Decode:
    """Serves every request until it has as many numbers as it asked for."""

    def __init__(self, requests):
        self.left = dict(requests)
        self.answers = {name: [] for name in requests}

    def plan(self, ask):
        names = tuple(name for name, left in self.left.items() if left)
        for name in names:
            self.left[name] -= 1
        return Batch(names) if names else ovsdk.CLOSED

    def retire(self, step, batch, result):
        host_work()
        for name, number in zip(batch.names, result, strict=True):
            self.answers[name].append(number)


def host_work():
    """What an engine does with a result: here, a millisecond or so of Python."""
    return sum(i * i for i in range(20_000))


# ---- the executor


class Engine:
    """Turns a batch into a launch."""

    def open(self, backend):
        self.model = backend.load(Fibonacci)

    def prepare(self, step, batch):
        return batch

    def launch(self, step, batch):
        return ovsdk.Launch("decode", fn=self.model.forward, host={"names": batch.names}, features=batch.features)


# ---- the runs

REQUESTS = {"ada": 12, "bob": 20, "eve": 16}
PRICES = {
    "schema": 1,
    "name": "fibonacci",
    "source": "guessed",
    "stage": {"plan_us": 20, "prepare_us": 0, "launch_us": 30, "retire_us": 950},
    "launch": {"decode": {"device_us": 3000}},
}


def numbers(device, depth):
    scheduler = Decode(REQUESTS)
    report = ovsdk.run(scheduler, Engine(), device, depth=depth)
    print(report)
    return report, scheduler.answers


if __name__ == "__main__":
    with ovsdk.open_backend("cpu") as device:
        _, serial = numbers(device, depth=1)
    with ovsdk.open_backend("cpu") as device:
        _, overlapped = numbers(device, depth=2)
    with ovsdk.open_backend("sim", prices=PRICES, execute=True) as device:
        report, simulated = numbers(device, depth=2)

    assert serial == overlapped == simulated
    print("ada:", *serial["ada"])
    print(report.picture(width=100, steps=range(4)))
