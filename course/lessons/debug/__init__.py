"""What lesson 06 computes and draws: event files, a timeline, measurements that find bugs, five patients."""
