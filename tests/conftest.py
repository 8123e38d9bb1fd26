"""Hypothesis profiles, chosen by HYPOTHESIS_PROFILE or --hypothesis-profile; `dev` by default.

`ci` draws the same examples on every run, so that a red run is red again on any machine. `dev` draws
new ones; a failure prints what reproduces it, and `--hypothesis-seed=N` repeats a whole run.
No profile has a deadline: a first call may compile a kernel, and machines are shared.

Signals that the caller ignores (a job in the background of a script, nohup) are not ignored here: commands that tests
start would inherit that, and never see the Ctrl-C that they are tested with.
"""

import os
import signal

from hypothesis import HealthCheck, settings

settings.register_profile(
    "ci",
    derandomize=True,
    database=None,
    max_examples=200,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile("dev", max_examples=50, deadline=None, print_blob=True)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "dev"))

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
for _number in (signal.SIGQUIT, signal.SIGHUP):
    if signal.getsignal(_number) is signal.SIG_IGN:
        signal.signal(_number, signal.SIG_DFL)
