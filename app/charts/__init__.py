"""Charts: what a run recorded, as columns, lines and figures."""
