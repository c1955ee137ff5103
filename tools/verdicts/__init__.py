"""Verdicts over random descriptions: accepted with which text, or refused where and in what words.

A change of the rules shows in them. With the same seed, every version of PyCUTLASS is given the same descriptions:

    python -m tools.verdicts --write before.jsonl    # in a checkout of before
    python -m tools.verdicts --compare before.jsonl  # with the change: each difference should be meant

Descriptions are drawn as plain data, from what has been accepted for long and with some parts that may be anything, so
that each rule meets some that break it alone. Nothing is compiled, and no GPU is needed.
"""
