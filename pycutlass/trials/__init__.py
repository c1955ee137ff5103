"""Measured trials: which kernel took how long for which problem on which machine, in one SQLite file.

What a problem and a candidate are is said by whoever measures, as JSON; nothing here knows what a GEMM is. Read in this
order: ``values`` (what a trial is), ``database`` (what is asked of many), then what they stand on: ``ranking`` (which
candidate is best, and which trials are worth keeping), ``lookup`` (the ranking that was asked for before), ``claims``
(who measures what just now), ``storage`` (on disk or in memory), ``rows`` (the table), ``lines`` (trials as a file of
JSON lines) and ``texts`` (JSON that is the same text whenever it means the same).
"""

from pycutlass.trials.database import Database
from pycutlass.trials.values import Machine, Trial

__all__ = ["Database", "Machine", "Trial"]
