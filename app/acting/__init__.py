"""What the dashboard does to runs: start, stop, resume. Nothing here acts on a read-only dashboard."""
