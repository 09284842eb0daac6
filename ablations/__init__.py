"""The paper's choices: the ladder of variants, its designs and scales, and the commands that run it."""
