"""Examples that somebody gives in Python or in a file of arrays, as a source of a data set.

``arrays`` makes pixels and labels of what is given, ``source`` chooses splits and size and plans the shards.
"""
