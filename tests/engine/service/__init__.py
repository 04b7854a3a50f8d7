"""Tests of the HTTP service, its client and its launcher."""
