"""Completing a whole workspace: holes, requests, journal, verification, output."""
