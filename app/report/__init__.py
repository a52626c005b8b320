"""A report: one HTML file about a run or several, which opens without a network and without labkit."""
