"""
The trace store that the environment names: opened at the first event, when nobody has started one.
"""
