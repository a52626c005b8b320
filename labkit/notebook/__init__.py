"""What notebooks use: parameters, trainings, figures (``plots``) and their live versions (``widgets``)."""
