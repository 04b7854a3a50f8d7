"""What this machine can do: its threads and memory, how fast it computes, and which model therefore fits. Light."""
