"""A run inside an asyncio program: requests are put and answered by tasks, and the loop stays free."""

import asyncio

import ovsdk
from ovsdk import BLOCKED, FINISHED


class Squares:
    """A scheduler of (number, asyncio future) requests, and an executor whose device squares the numbers."""

    def __init__(self):
        self.waiting = []

    def plan(self, ask):
        self.waiting += ask.arrivals
        batch, self.waiting = tuple(self.waiting[:2]), self.waiting[2:]
        return batch or ovsdk.IDLE

    def retire(self, step, batch, result):
        for (_, answer), square in zip(batch, result, strict=True):
            answer.set_result(square)

    def prepare(self, step, batch):
        return [number for number, _ in batch]

    def launch(self, step, numbers):
        return ovsdk.Launch("square", fn=lambda numbers: [n * n for n in numbers], host={"numbers": numbers})


async def drive(run):
    while (progress := run.advance(timeout_s=0)) is not FINISHED:
        await asyncio.sleep(0.001 if progress is BLOCKED else 0)


async def serve(device, numbers):
    requests = ovsdk.AdmissionQueue()
    squares = Squares()
    with ovsdk.start(squares, squares, device, admission=requests) as run:
        driving = asyncio.create_task(drive(run))
        answers = [asyncio.get_running_loop().create_future() for _ in numbers]
        for number, answer in zip(numbers, answers, strict=True):
            requests.put((number, answer))
        squared = await asyncio.gather(*answers)
        requests.close()
        await driving
    return squared, run.result()


with ovsdk.open_backend("thread") as device:
    squared, report = asyncio.run(serve(device, [1, 2, 3, 4, 5]))
assert squared == [1, 4, 9, 16, 25]
print(report)
