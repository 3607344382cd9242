"""What runs in, or starts, the load generator's process. It knows no study and computes no percentile that is kept."""
