"""The train loop: strategy, schedules, optimizer, steps, telemetry, checkpoints, evaluation."""
