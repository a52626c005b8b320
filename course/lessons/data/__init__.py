"""What lesson 01 computes and draws: records, input pipelines and their timelines, shuffling, memory."""
