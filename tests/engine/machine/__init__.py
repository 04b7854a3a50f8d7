"""Tests of what is known of the machine, and of the model chosen for it."""
