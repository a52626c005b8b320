"""``labkit compare``: train several models with several seeds under one budget, each in its own process."""
