"""Transfer learning: start from trained weights, and freeze layers for some or all steps."""
