"""Bringing up a new revision beside the serving one: its pods, requests, analysis and rejection."""
