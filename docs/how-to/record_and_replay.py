"""Record a run whose requests come from another thread, then replay it with two threads: the same decisions."""

import threading

import ovsdk


class Echo:
    """A scheduler that serves one request per step, and an executor whose device writes it in capitals."""

    def __init__(self):
        self.waiting, self.batches, self.answers = [], [], []

    def plan(self, ask):
        self.waiting += ask.arrivals
        if not self.waiting:
            return ovsdk.IDLE
        self.batches.append((ask.number, self.waiting.pop(0)))
        return self.batches[-1][1]

    def retire(self, step, batch, result):
        self.answers.append(result)

    def prepare(self, step, batch):
        return batch

    def launch(self, step, inputs):
        return ovsdk.Launch("shout", fn=str.upper, inputs=inputs)


# ---- recording

requests = ovsdk.AdmissionQueue()


def clients():
    for word in ("one", "two", "three"):
        requests.put(word)
    requests.close()


recorded = Echo()
threading.Thread(target=clients).start()
ovsdk.run(recorded, recorded, "thread", admission=requests, log="run.jsonl")

replayed = Echo()
ovsdk.run(replayed, replayed, "thread", driver="threads", replay="run.jsonl")

assert replayed.batches == recorded.batches  # the same request in the same ask
assert replayed.answers == recorded.answers == ["ONE", "TWO", "THREE"]
