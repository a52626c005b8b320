"""Training and evaluation: plan, session, train loop, steps, telemetry, checkpoints."""
