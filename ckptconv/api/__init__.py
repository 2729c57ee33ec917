"""The verbs that work on checkpoints: open, save, convert, verify, diff. Each is a few lines over lower rooms.

path -> detect -> open -> passes -> place -> plan -> run -> seal -> verify

    options.py   the options of all verbs   reading.py    a source, selected and changed
    writing.py   a destination              comparing.py  two checkpoints
    memory.py    arrays in memory           result.py     the report of a conversion
"""
