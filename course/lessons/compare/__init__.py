"""What lesson 08 computes and draws: many short trainings, and what can be concluded from them."""
