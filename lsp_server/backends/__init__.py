"""Where suggestions come from: the local engine's service, behind one contract."""
