"""Workloads, measuring and reports: ``midline bench``. A number stands beside what limits it and how it came about."""
