"""What guessing may cost at most: an account of the time that it saved and took. Pure.

Chances and costs are estimates, and text changes its nature. So what guesses took beyond what they gave is bounded by
this account, whatever the estimates say: a share of all time, and what was gained lately.
"""

from dataclasses import dataclass

SHARE = 0.004  # of all time goes into the account, and the same into looking whether guessing pays again
START_STEPS = 1.5  # steps' worth in the account at first: less is too little to see anything
MOST_STEPS = 12.0  # steps' worth in the account at most
MOST_TRIALS = 1.5  # steps' worth that can be saved up for trials


@dataclass(slots=True)
class Credit:
    """In seconds, kept in proportion to the instance's steps."""

    left_s: float = 0.0
    trial_s: float = 0.0
    _step_s: float = 0.0

    def earn(self, step_s: float) -> None:
        """A step that would take `step_s` without guesses was done."""
        if not self._step_s:
            self.left_s = START_STEPS * step_s
        self._step_s += 0.1 * (step_s - self._step_s) if self._step_s else step_s
        self.left_s = min(self.left_s + SHARE * step_s, MOST_STEPS * self._step_s)
        self.trial_s = min(self.trial_s + SHARE * step_s, MOST_TRIALS * self._step_s)

    def spend(self, cost_s: float, gain_s: float, *, trial: bool) -> None:
        """Guesses took `cost_s` more, and gave tokens that would have taken `gain_s`."""
        if trial:
            self.trial_s -= cost_s - min(gain_s, cost_s)
        else:
            self.left_s = min(self.left_s + gain_s - cost_s, MOST_STEPS * self._step_s)
