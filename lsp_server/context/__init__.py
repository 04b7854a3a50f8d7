"""What the model gets to see: windows over the current file."""
