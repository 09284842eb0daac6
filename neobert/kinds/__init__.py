"""Kinds of work, one module each: specification, parts, record and costs. `neobert.runs.kinds` lists them."""
