"""Runs that die, for the tests of those that go on."""

import math

from steadygrad.training import Callback


class StoppedError(Exception):
    pass


class StopAt(Callback):
    """Has the loop save after ``save`` updates and dies after ``die``, as a process does: without a word."""

    def __init__(self, save, die):
        self.save, self.die = save, die

    def update(self, trainer, loss):
        if trainer.step == self.save:
            trainer.saved = -math.inf  # long ago
        if trainer.step == self.die:
            raise StoppedError
