"""What lesson 04 computes and draws: all-reduce, batch statistics, loss scaling, the gradient noise scale."""
