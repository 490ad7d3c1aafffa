"""Stages of the context pipeline: functions from a view to edits."""
