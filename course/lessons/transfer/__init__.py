"""What lesson 07 computes and draws: parts of a data set, many short trainings from one base, features."""
