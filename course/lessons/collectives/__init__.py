"""What lesson 10 uses beside the algorithms in its cells: slower links, a record of measurements, figures."""
