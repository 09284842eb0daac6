"""M0, M1, M2 and M4 on four times the tokens of declarations/parts.py.

python ablations/run.py --ladder declarations/longer.py --list

What is left of M1's earlier start, and of M4, when the wait on the plateau is a small share of the run? All else is as
at the scale `parts`: warm-up, decay and the half-life of beta2 are the same shares of the run as there, and as in the
shorter runs of its forecast.
"""

from dataclasses import replace

from ablations import ladder
from declarations import parts

M0, M1, M2, M4 = ladder.M0, ladder.M1, ladder.M2, ladder.M4
TASKS = parts.TASKS
SCALES = {"longer": replace(parts.SCALES["parts"], steps={1_000_000: 32_000})}
END = M4
PUBLISHED, PUBLISHED_AS = parts.PUBLISHED, parts.PUBLISHED_AS
