"""What lesson 06 computes and draws: event files, a timeline, measurements that find bugs, and five patients.

``broken`` and ``five`` import TensorFlow; the others don't.
"""
